"""PID 1 of every pod: `python -m trainer.supervisor worker|control --config F --run-dir D`.

It decides the pod's exit code from the records in the run directory, never from NVRx's own codes: COMPLETE 0, TERMINAL
its code, SIGTERM or an older generation 75, everything else 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast import launch
from holdfast.config import ConfigError, RunConfig, dump, load_file, names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import Owner, RunDirectory, RunIsOwned, StaleGeneration, Terminal, write_atomically
from trainer import preflight
from trainer.child import Child, age_s, become_subreaper, reap
from trainer.departure import Departure
from trainer.restart.heartbeat import MONITORED_PREFIX

POLL_S = 0.1
RECORDS_S = 0.5
"""How often the records in the run directory are read; each is a metadata request to the shared file system."""
END_S = 10.0
"""After COMPLETE: how long launchers may take to end by themselves."""
OWNER_S = 60.0
"""A worker starts only after its control pod is ready, so the owner record is there; this covers a slow file system."""
NVRX_EVENT = re.compile(r"- Cycle: (\d+) Event: (\w+)")


class Supervisor:
    """One pod. `run` returns its exit code."""

    def __init__(self, role: str, config: RunConfig, run: RunDirectory, environment: Mapping[str, str]) -> None:
        self._role = role
        self._config = config
        self._run = run
        self._environment = dict(environment)
        self._pod = environment[names.ENV_POD]
        self._job = environment[names.ENV_JOB]
        self._jobset_attempt = int(environment[names.ENV_JOBSET_ATTEMPT])
        self._scratch = Path(environment[names.ENV_SCRATCH])
        self._store = environment[names.ENV_STORE]
        self._port = int(self._store.rpartition(":")[2])
        self._departure = Departure(config, run, self._scratch, self._port)
        self._log = EventLog(run.events, "supervisor", role=role, pod=self._pod, node=environment[names.ENV_NODE])
        self._beats = 0
        self._next_beat = 0.0
        self._next_look = 0.0

    def run(self) -> int:
        """Run the pod to its end."""
        signal.signal(signal.SIGTERM, self._departure.on_signal)
        signal.signal(signal.SIGINT, self._departure.on_signal)
        self._log.point("pod_start")
        code, reason = self._outcome()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the code is decided; a late SIGTERM must not change it
        logging.log(
            logging.INFO if code == names.EXIT_COMPLETE else logging.ERROR, "pod ends with %d: %s", code, reason
        )
        self._log.point("pod_end", code=code, reason=reason)
        return code

    def _outcome(self) -> tuple[int, str]:
        recorded = self._recorded()
        if recorded is not None:
            return recorded
        over = self._departure.capacity_over()
        if over is not None:
            return names.EXIT_PREEMPTED, over
        with self._log.span("preflight"):
            unfit = preflight.findings(self._config, self._run.path)
        if unfit:
            return names.EXIT_RETRY, "this node is unfit: " + " ".join(unfit)
        try:
            return self._control() if self._role == names.CONTROL else self._worker()
        except RunIsOwned as error:
            return names.EXIT_PREEMPTED, str(error)
        except StaleGeneration as error:
            return names.EXIT_PREEMPTED, str(error)

    def _recorded(self) -> tuple[int, str] | None:
        """Exit code and reason that the run directory already holds."""
        complete = self._run.complete()
        if complete is not None:
            return self._completed(complete.get("step"))
        terminal = self._run.terminal()
        if terminal is not None:
            return terminal.code, f"{self._run.path / names.TERMINAL}: {terminal.reason}"
        return None

    def _completed(self, step: object) -> tuple[int, str]:
        steps = self._config.training.steps
        if step == steps:
            return names.EXIT_COMPLETE, "the run is complete"
        why = f"training.steps = {steps}: this run is complete at step {step} and cannot be made longer or shorter"
        return names.EXIT_CONFIG, f"{why}; give the other one another name"

    # --- control pod ---

    def _control(self) -> tuple[int, str]:
        for warning in preflight.warnings(self._config, self._run.path):
            logging.warning("%s", warning)
        taken = preflight.port_taken(self._port)
        if taken:
            return names.EXIT_RETRY, f"port {self._port} of the store is taken: {taken}. End what listens there."
        owner = self._run.take(
            nodes=self._config.cluster.nodes,
            job=self._job,
            jobset_attempt=self._jobset_attempt,
            pod=self._pod,
            lease_s=self._config.recovery.owner_lease_s,
        )
        write_atomically(self._run.path / names.RUN_YAML, dump(self._config))
        argv = launch.control_argv(self._config, generation=owner.generation, nodes=owner.nodes, port=self._port)
        try:
            outcome = self._supervise(argv, owner, lambda child: self._renew(owner))
        finally:
            self._run.release(owner.generation)
        return outcome

    def _renew(self, owner: Owner) -> None:
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + self._config.recovery.owner_lease_s / 3
            self._beats += 1
            self._run.require_generation(owner.generation)
            self._run.beat(owner.generation, self._beats)

    # --- worker pod ---

    def _worker(self) -> tuple[int, str]:
        owner = self._await_owner()
        if owner is None:
            if self._departure.due():
                return names.EXIT_PREEMPTED, f"{self._departure.why}, before the control pod was there"
            return (
                names.EXIT_RETRY,
                f"no control pod of {self._job}, attempt {self._jobset_attempt}, took the run within {OWNER_S:.0f} s",
            )
        argv = launch.launcher_argv(
            self._config,
            generation=owner.generation,
            nodes=owner.nodes,
            store=self._store,
            local_addr=self._environment[names.ENV_POD_IP],
            group_rank=int(self._environment[names.ENV_GROUP_RANK]),
            master=self._environment[names.ENV_MASTER],
            rank_args=["--config", str(self._environment["HOLDFAST_CONFIG"]), "--run-dir", str(self._run.path)],
        )
        return self._supervise(argv, owner, self._limit_first_section)

    def _await_owner(self) -> Owner | None:
        """The generation of this pod's own JobSet attempt. Raises StaleGeneration if a newer one owns the run."""
        deadline = time.monotonic() + OWNER_S
        while time.monotonic() < deadline and not self._departure.due():
            owner = self._run.owner()
            if owner is not None and owner.job == self._job:
                if owner.jobset_attempt == self._jobset_attempt:
                    return owner
                if owner.jobset_attempt > self._jobset_attempt:
                    raise StaleGeneration(
                        f"this pod is of attempt {self._jobset_attempt}; attempt {owner.jobset_attempt} owns the run"
                    )
            time.sleep(POLL_S)
        return None

    def _limit_first_section(self, child: Child) -> None:
        """End a rank that has no rank monitor yet and never may: until its first section NVRx does not watch it."""
        if not self._config.recovery.in_job:
            return
        limit = self._config.recovery.first_section_timeout_s
        for process in child.ranks():
            age = age_s(process.pid)
            if age > limit and not (self._scratch / f"{MONITORED_PREFIX}{process.pid}").exists():
                logging.error(
                    "rank process %d has no section after %.0f s (recovery.first_section_timeout_s); killing it",
                    process.pid,
                    age,
                )
                self._log.point("first_section_timeout", pid=process.pid, age_s=age)
                process.kill()

    # --- both ---

    def _supervise(self, argv: list[str], owner: Owner, look_after: Callable[[Child], None]) -> tuple[int, str]:
        """Start the child and watch it, the records and the signals, until one of them ends the pod."""
        environment = self._environment | launch.rank_environment(
            self._config, generation=owner.generation, token=owner.token
        )
        logging.info("starting %s", " ".join(argv))
        self._log.point("launcher_start", generation=owner.generation)
        child = Child(argv, environment, self._on_line)
        ready = self._scratch / names.READY_FILE
        ready.touch()
        try:
            ended = self._watch(child, owner, look_after)
            if not ended:
                self._stop(child, owner, look_after)
        finally:
            ready.unlink(missing_ok=True)
            self._log.point("launcher_end", code=child.code())
            child.kill_all()
        self._run_is_ours(owner)
        return self._verdict(child)

    def _watch(self, child: Child, owner: Owner, look_after: Callable[[Child], None]) -> bool:
        """True when the child has ended; False when it must be stopped."""
        while child.code() is None:
            if self._departure.due():
                return False
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + RECORDS_S
                reap(child.pid)
                look_after(child)
                if self._run.complete() is not None:
                    return child.wait(END_S)
                if self._run.terminal() is not None:
                    return False
                self._run_is_ours(owner)
                self._departure.look_for_request(owner.generation)
            time.sleep(POLL_S)
        return True

    def _run_is_ours(self, owner: Owner) -> None:
        self._run.require_generation(owner.generation)

    def _stop(self, child: Child, owner: Owner, look_after: Callable[[Child], None]) -> None:
        """If the pod goes, let ranks save first. Then SIGTERM, and after the time that the ranks have, SIGKILL."""
        limit = min(self._config.recovery.term_timeout_s + 2, self._config.cluster.grace_period_s - 1)
        if self._departure.why is not None and self._role == names.CONTROL:
            self._departure.let_workers_leave(child, owner.generation, lambda: look_after(child))
        elif self._departure.why is not None and self._departure.let_ranks_save(child):
            return
        child.terminate()
        if not child.wait(limit):
            logging.error("the launcher did not end within %d s of SIGTERM; killing it", limit)

    def _verdict(self, child: Child) -> tuple[int, str]:
        recorded = self._recorded()
        if recorded is not None:
            return recorded
        if self._departure.why is not None:
            return names.EXIT_PREEMPTED, self._departure.why
        if self._role == names.CONTROL:
            # A worker's TERMINAL may be on its way; the JobSet must see it before this pod's failure restarts
            # everything.
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and recorded is None:
                time.sleep(POLL_S)
                recorded = self._recorded()
        return recorded or (names.EXIT_RETRY, f"the launcher ended with {child.code()} and the run is not complete")

    def _on_line(self, line: str) -> None:
        match = NVRX_EVENT.search(line)
        if match:
            self._log.point("launcher_event", event=match.group(2), cycle=int(match.group(1)))


def main() -> int:
    """Entry of the pod."""
    parser = argparse.ArgumentParser(prog="python -m trainer.supervisor")
    parser.add_argument("role", choices=("worker", names.CONTROL))
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {arguments.role} %(levelname)s %(message)s", stream=sys.stdout
    )
    become_subreaper()
    run = RunDirectory(arguments.run_dir)
    try:
        config = load_file(arguments.config)
        environment = {**os.environ, "HOLDFAST_CONFIG": str(arguments.config)}
        return Supervisor(arguments.role, config, run, environment).run()
    except ConfigError as error:
        logging.error("%s", error)
        run.write_terminal(Terminal(names.EXIT_CONFIG, str(error)))
        return names.EXIT_CONFIG
    except KeyError as error:
        logging.error("environment variable %s is missing: the pod was not started by the synthesized manifest", error)
        return names.EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main())
