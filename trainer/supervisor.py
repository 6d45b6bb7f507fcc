"""PID 1 of every pod: `python -m trainer.supervisor worker|control --config F --run-dir D`.

It decides the pod's exit code from the records in the run directory, never from NVRx's own codes: COMPLETE 0, TERMINAL
its code, SIGTERM or an older generation 75, everything else 1. What it does in between is in trainer/pod/.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.config import ConfigError, load_file, names
from holdfast.run_directory import RunDirectory, RunIsOwned, StaleGeneration, Terminal
from trainer import preflight
from trainer.child import become_subreaper
from trainer.pod.control import control
from trainer.pod.pod import RECORDS_S, Pod
from trainer.pod.verdict import Outcome, recorded
from trainer.pod.worker import worker

LOOK_AGAIN_S = 5.0
"""How often a pod on an unfit node looks whether it is fit again."""
LAST_WORDS_BYTES = 4096
"""What Kubernetes keeps of a termination message."""
LAST_WORDS_TAIL = 1024
"""Of a longer one, so much of its end is said: what to do about it stands there, with the id of the record."""


def supervise(pod: Pod) -> int:
    """Run the pod to its end; its exit code."""
    signal.signal(signal.SIGTERM, pod.departure.on_signal)
    signal.signal(signal.SIGINT, pod.departure.on_signal)
    pod.log.point("pod_start")
    code, reason = _outcome(pod)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the code is decided; a late SIGTERM must not change it
    logging.log(logging.INFO if code == names.EXIT_COMPLETE else logging.ERROR, "pod ends with %d: %s", code, reason)
    pod.log.point("pod_end", code=code, reason=reason)
    say_last_words(reason)
    return code


def say_last_words(reason: str) -> None:
    """Where Kubernetes looks for the reason why a container ended: `kubectl describe pod` shows it, and the pod's
    status keeps it when the log is gone."""
    path = os.environ.get(names.ENV_TERMINATION_MESSAGE)
    if path:
        with contextlib.suppress(OSError):  # the reason is in the log and in the records as well
            Path(path).write_bytes(_cut(reason))


def _cut(reason: str) -> bytes:
    """The reason in UTF-8; of a long one the middle is left out."""
    whole, gap = reason.encode(errors="replace"), b" [...] "
    if len(whole) <= LAST_WORDS_BYTES:
        return whole
    head, tail = whole[: LAST_WORDS_BYTES - LAST_WORDS_TAIL - len(gap)], whole[-LAST_WORDS_TAIL:]
    return head.decode(errors="ignore").encode() + gap + tail.decode(errors="ignore").encode()


def _outcome(pod: Pod) -> Outcome:
    before = recorded(pod)
    if before is not None:
        return before
    over = pod.departure.capacity_over()
    if over is not None:
        return Outcome(names.EXIT_PREEMPTED, over)
    unfit = _until_fit(pod)
    if unfit:
        code = names.EXIT_RETRY if pod.departure.why is None else names.EXIT_PREEMPTED
        return recorded(pod) or Outcome(code, "this node is unfit: " + " ".join(unfit))
    try:
        return control(pod) if pod.is_control else worker(pod)
    except (RunIsOwned, StaleGeneration) as error:
        return Outcome(names.EXIT_PREEMPTED, str(error))
    except OSError as error:
        return Outcome(names.EXIT_RETRY, f"the run directory cannot be used: {error}")


def _until_fit(pod: Pod) -> list[str]:
    """What makes this node unfit; empty once it is fit. Looks again until recovery.unfit_wait_s are over, the pod must
    go, or the run has ended."""
    deadline = time.monotonic() + pod.config.recovery.unfit_wait_s
    said: list[str] = []
    while True:
        with pod.log.span("preflight"):
            unfit = preflight.findings(pod.config, pod.run.path)
        now = time.monotonic()
        if not unfit or now >= deadline:
            return unfit
        if unfit != said:
            logging.error("this node is unfit, waiting up to %.0f s: %s", deadline - now, " ".join(unfit))
            said = unfit
        next_look = min(deadline, now + LOOK_AGAIN_S)
        while time.monotonic() < next_look:
            if pod.departure.due() or recorded(pod) is not None:
                return unfit
            time.sleep(RECORDS_S)


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
        return supervise(Pod.from_environment(arguments.role, config, arguments.config, run, os.environ))
    except ConfigError as error:
        logging.error("%s", error)
        run.write_terminal(Terminal(names.EXIT_CONFIG, str(error)))
        say_last_words(str(error))
        return names.EXIT_CONFIG
    except KeyError as error:
        logging.error("environment variable %s is missing: the pod was not started by the synthesized manifest", error)
        return names.EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main())
