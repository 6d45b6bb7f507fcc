"""One rank: `python -m trainer --config F --run-dir D`, started by ft_launcher or torchrun. Imports come in the order
in which they are needed, each cost visible in the event log.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from holdfast import lineage
from holdfast.config import ConfigError, RunConfig, load_file, names
from holdfast.lineage import StaleAttempt
from holdfast.run_directory import RunDirectory, StaleGeneration, Terminal
from trainer import preflight
from trainer.child import age_s
from trainer.gpu_memory import require_room
from trainer.metrics.rank import MeasuredLog, measure
from trainer.model_folder import settled
from trainer.restart import failures, who
from trainer.restart.heartbeat import MonitorLost
from trainer.restart.idle import IDLE_ATTEMPTS, Idle
from trainer.restart.learned_limits import StepLimit
from trainer.runtime import Attempt, Identity, raise_open_files_limit

if TYPE_CHECKING:
    from trainer.restart.in_process import HangWatch
    from trainer.train import Survivors


def main() -> int:
    """Run attempts until the run is complete. The exit code tells the launcher only whether it went well; pod codes are
    the supervisor's, from the records.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    identity = Identity.from_environment(os.environ)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {identity.rank} %(levelname)s %(message)s", stream=sys.stdout
    )
    raise_open_files_limit()
    run = RunDirectory(arguments.run_dir)
    try:
        config = settled(load_file(arguments.config), Path(os.environ[names.ENV_STORAGE]), run)
        if not config.recovery.in_job:
            # A pod that is replaced under torchrun is a new attempt too. Every rank reads this before the process group
            # is there, and rank 0 begins the attempt after that, so that all count alike.
            identity = replace(identity, cycle=lineage.cycles(run, identity.generation))
        return rank(config, identity, run)
    except ConfigError as error:
        logging.error("%s", error)
        run.write_terminal(Terminal(names.EXIT_CONFIG, str(error), rank=identity.rank))
        return names.EXIT_CONFIG
    except (StaleAttempt, StaleGeneration) as error:
        logging.error("%s", error)
        return names.EXIT_PREEMPTED
    except MonitorLost as error:
        logging.error("%s", error)
        _record_uncounted(run, identity, 0, 0, error)
        return names.EXIT_RETRY


def rank(config: RunConfig, identity: Identity, run: RunDirectory) -> int:
    """Everything after the config is known."""
    log = MeasuredLog(
        run.events,
        "rank",
        rank=identity.rank,
        world_size=identity.world_size,
        generation=identity.generation,
        cycle=identity.cycle,
        pod=identity.pod,
        node=identity.node,
    )
    # Warm: forked by the pod's standby (trainer/standby), which has all imports behind it.
    log.point("process_start", at=_process_started(), warm="torch" in sys.modules)
    who.say(os.environ, identity, log.path)
    with log.span("import") as imported:
        from trainer.restart import heartbeat

        pulse = heartbeat.connect()
        log.point("monitored")
        pulse.learn(StepLimit(config, run, identity.rank, identity.world_size))
        from trainer.imports import import_training_stack

        import_training_stack(config.model.family)
        import torch

        from trainer.checkpoint.near import Hands
        from trainer.checkpoint.stage import Stage
        from trainer.checkpoint.writer import Writer, start_together
        from trainer.restart import in_process
        from trainer.train import Survivors
        from trainer.versions import versions

        imported["versions"] = versions()

    if config.device == "cpu":
        # Not on a GPU, though to the number that is there: it starts threads, and the writer could not be forked.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.use_deterministic_algorithms(config.device == "cpu")
    storage = Path(os.environ[names.ENV_STORAGE])
    writer = Writer(identity.rank)
    local = None if config.checkpoint.local.interval_steps is None else Hands(Writer(identity.rank))
    wanted = ([] if config.checkpoint.mode == "off" else [writer]) + ([] if local is None else [local.writer])
    # Before this process has threads (metrics, process group) or CUDA: then a fork will do, and imports nothing.
    start_together(wanted, fork=True)
    measure(log, config, identity, run)
    survivors = Survivors(config, identity, run, storage, log, pulse, writer, Stage(), local)
    idle = Idle(lambda: survivors.finished)
    try:
        in_process.run(
            config,
            identity,
            lambda attempt, watch: _attempt(attempt, survivors, watch),
            lambda restart: _why_not(restart, survivors, idle),
        )
    finally:
        writer.close()
        if local is not None:
            local.writer.close()
    return names.EXIT_COMPLETE


def _attempt(attempt: Attempt, survivors: object, watch: HangWatch) -> None:
    """One attempt, with its start, its end and its failure on record."""
    from trainer.checkpoint.restore import NoCheckpoint
    from trainer.checkpoint.saving import SavesKeepFailing
    from trainer.restart.bad_loss import BadLoss
    from trainer.train import Survivors, train
    from trainer.urgent import Leaving

    assert isinstance(survivors, Survivors)
    config, run, log, identity = survivors.config, survivors.run, survivors.log, survivors.identity
    run.require_generation(attempt.generation)
    log.point("attempt_start", restart=attempt.restart)
    if attempt.restart > 0 and identity.local_rank == 0:
        _require_fit_node(config, run)
    try:
        require_room(config, run, identity.world_size, identity.local_rank)
        train(attempt, survivors, watch)
    except Leaving as leaving:
        log.point("attempt_end", restart=attempt.restart, outcome="preempted", error=str(leaving), step=survivors.step)
        with suppress(MonitorLost):
            survivors.pulse.leave()
        survivors.writer.close()
        leaving.together()
        leave(names.EXIT_PREEMPTED)  # at once: NVRx's wrapper would answer whatever is raised here with a restart
    except (ConfigError, NoCheckpoint) as error:
        # Wrong input stays wrong: no layer may restart it.
        run.write_terminal(
            Terminal(names.EXIT_CONFIG, str(error), identity.rank, survivors.step, str(attempt)), attempt.generation
        )
        log.point(
            "attempt_end", restart=attempt.restart, outcome="exception", error=str(error)[:500], step=survivors.step
        )
        raise
    except BadLoss as error:
        log.point("attempt_end", restart=attempt.restart, outcome="exception", error=str(error), step=survivors.step)
        failures.record(run, attempt, identity.rank, survivors.step, error, 0, counts=False)
        raise
    except MonitorLost as error:
        log.point("attempt_end", restart=attempt.restart, outcome="exception", error=str(error), step=survivors.step)
        _record_uncounted(run, identity, attempt.restart, survivors.step, error)
        logging.error("%s. This process ends, for the launcher to start another.", error)
        leave(names.EXIT_RETRY)  # at once: layer 1 would answer an exception with an attempt that ends alike
    except SavesKeepFailing as error:
        log.point(
            "attempt_end", restart=attempt.restart, outcome="exception", error=str(error)[:500], step=survivors.step
        )
        raise
    except Exception as error:
        log.point(
            "attempt_end", restart=attempt.restart, outcome="exception", error=repr(error)[:500], step=survivors.step
        )
        logging.error("attempt %s failed at step %d: %r", attempt, survivors.step, error)
        failures.record(run, attempt, identity.rank, survivors.step, error, config.recovery.same_step_limit)
        raise
    except BaseException as error:
        # NVRx's asynchronous RankShouldRestart: another rank failed, or this one hung.
        log.point(
            "attempt_end", restart=attempt.restart, outcome="exception", error=type(error).__name__, step=survivors.step
        )
        raise
    log.point("attempt_end", restart=attempt.restart, outcome="complete", step=survivors.step)


def _why_not(restart: int, survivors: Survivors, idle: Idle) -> str | None:
    """Asked before each attempt under layer 1: why this process should not make it, or None."""
    if survivors.run.terminal() is not None:
        return "the stop rule has spoken: see TERMINAL.json"
    if not idle.too_many():
        return None
    why = f"{IDLE_ATTEMPTS} attempts in a row have finished no step in this process; a new one takes over"
    logging.error(why)
    _record_uncounted(survivors.run, survivors.identity, restart, survivors.step, RuntimeError(why))
    return why


def _record_uncounted(run: RunDirectory, identity: Identity, restart: int, step: int, error: Exception) -> None:
    """Say why a process ends that layer 2 is to start again: without a record its exit code would count as a death."""
    with suppress(OSError):
        attempt = Attempt(identity.generation, identity.cycle, restart)
        failures.record(run, attempt, identity.rank, step, error, 0, counts=False)


def _require_fit_node(config: RunConfig, run: RunDirectory) -> None:
    """Layer 1 does not ask the launcher, which looks at the node before each of its own restarts. On an unfit node the
    process ends: the launcher then looks, and gives this node's place to a spare."""
    unfit = preflight.findings(config, run.path)
    if unfit:
        logging.error("this node is unfit: %s", " ".join(unfit))
        leave(names.EXIT_RETRY)


def _process_started() -> float:
    """Monotonic time at which the kernel started this process; the interpreter's own start is part of a restart."""
    return time.monotonic() - age_s(os.getpid())


def leave(code: int) -> NoReturn:
    """End the process at once. A failed attempt can leave threads and queues behind that the interpreter would wait for
    (seen: for ever, after NVRx's wrapper gave up); nothing here needs its clean-up, and the writer dies with us."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        exit_code = main()
    except SystemExit as end:  # of argparse: help, or words that it does not know
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  the interpreter would print it too, and then might never end
        traceback.print_exc()
        exit_code = 1
    leave(exit_code)
