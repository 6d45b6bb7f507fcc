"""With which code a pod ends. The records in the run directory decide, never a launcher's own code: NVRx 0.6.0 ends
with 0 or 1, and each can mean either.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from holdfast.config import names
from holdfast.run_directory import Terminal
from holdfast.terminal import set_aside, terminal_id, was_set_aside, way_on
from trainer.pod.pod import POLL_S, Pod

LATE_RECORD_S = 2.0
"""A worker's TERMINAL may be on its way when the control pod's launcher ends."""


class Outcome(NamedTuple):
    """How a pod ends."""

    code: int
    reason: str


def recorded(pod: Pod) -> Outcome | None:
    """What the run directory already says, or None."""
    complete = pod.run.complete()
    if complete is not None:
        return _completed(pod, complete.get("step"))
    terminal = pod.run.terminal()
    if terminal is not None and not is_cleared(pod, terminal):
        return Outcome(terminal.code, f"{pod.run.path / names.TERMINAL}: {terminal.reason} {way_on(terminal)}")
    return None


def is_cleared(pod: Pod, terminal: Terminal) -> bool:
    """Whether the config says of this very record that its cause is mended. It may say so once: the same record,
    written again, shows that it is not."""
    named = pod.config.resume.clear_terminal
    return named is not None and named == terminal_id(terminal) and not was_set_aside(pod.run, named)


def clear_named_terminal(pod: Pod) -> Path | None:
    """Set the record aside that the config names; its new path, or None. Only for the owner of the run."""
    terminal = pod.run.terminal()
    return set_aside(pod.run) if terminal is not None and is_cleared(pod, terminal) else None


def of_ended_launcher(pod: Pod, launcher_code: int | None) -> Outcome:
    """COMPLETE 0, TERMINAL its code, a pod that goes 75, everything else 1."""
    found = recorded(pod)
    if found is not None:
        return found
    if pod.departure.why is not None:
        return Outcome(names.EXIT_PREEMPTED, pod.departure.why)
    if pod.is_control:
        # The JobSet must see a worker's TERMINAL before this pod's failure restarts everything.
        deadline = time.monotonic() + LATE_RECORD_S
        while time.monotonic() < deadline and found is None:
            time.sleep(POLL_S)
            found = recorded(pod)
    return found or Outcome(names.EXIT_RETRY, f"the launcher ended with {launcher_code} and the run is not complete")


def _completed(pod: Pod, step: object) -> Outcome:
    steps = pod.config.training.steps
    if step == steps:
        return Outcome(names.EXIT_COMPLETE, "the run is complete")
    why = f"training.steps = {steps}: this run is complete at step {step} and cannot be made longer or shorter"
    return Outcome(names.EXIT_CONFIG, f"{why}; give the other one another name")
