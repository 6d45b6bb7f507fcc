"""Progress of a run as plain lines, one per event that a person would want to know of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holdfast.commands.run_follow import TrainingEvent
from holdfast.local import report
from holdfast.local.rewrite import Rewrite

PROGRESS_S = 5.0
"""At most one line about finished steps in so long."""


class Lines:
    """An observer that prints. steps: of the whole run. explain: also print how each pod differs from its manifest."""

    def __init__(self, steps: int, *, explain: bool = False, write: Callable[[str], object] | None = None) -> None:
        self._steps = steps
        self._explain = explain
        self._write = write or (lambda text: print(text, flush=True))
        self._origin = time.monotonic()
        self._next_progress = 0.0

    def __call__(self, event: report.Happening | TrainingEvent) -> None:
        """Print a line if the event deserves one."""
        if isinstance(event, TrainingEvent):
            text = self._training(event)
        else:
            text = _runner(event)
            if self._explain and isinstance(event, report.PodStarted):
                text = "\n".join([text or "", *map(_rewrite, event.rewrites)])
        if text:
            self._write(f"[{time.monotonic() - self._origin:7.1f} s] {text}")

    def _training(self, event: TrainingEvent) -> str | None:
        fields = event.fields
        match event.name:
            case "first_step" if event.rank == 0:
                return f"training: step {event.step} is done, {_attempt(event)}"
            case "step" if event.rank == 0 and time.monotonic() >= self._next_progress:
                self._next_progress = time.monotonic() + PROGRESS_S
                return f"step {event.step} of {self._steps}"
            case "commit":
                return f"checkpoint of step {event.step} is committed"
            case "save_failed":
                return f"the save of step {event.step} failed: {fields.get('error')}"
            case "skipped":
                return f"checkpoint {fields.get('folder')} is skipped: {fields.get('why')}"
            case "fault":
                return f"FAULT {fields.get('id')}"
            case "attempt_end" if fields.get("outcome") != "complete":
                error = f": {str(fields['error'])[:160]}" if fields.get("error") else ""
                return f"rank {event.rank}: attempt ended by {fields.get('outcome')} at step {event.step}{error}"
            case "launcher_event" if fields.get("event") == "failure_detected":
                return f"{event.anchor.get('pod')}: the launcher has noticed a failure"
        return None


def _attempt(event: TrainingEvent) -> str:
    anchor = event.anchor
    return f"generation {anchor.get('generation')}, cycle {anchor.get('cycle')}"


def _runner(event: report.Happening) -> str | None:
    match event:
        case report.RunStarted():
            ports = "".join(f", {host}:{port} is port {here}" for (host, port), here in event.ports.items())
            return f"run {event.jobset} in {event.out}{ports}"
        case report.PodPending():
            return f"pod {event.pod} waits for a node"
        case report.PodStarted():
            attempt = f" (restart {event.attempt})" if event.attempt else ""
            return f"pod {event.pod} starts on {event.node}, address {event.address}{attempt}"
        case report.PodEnded():
            tail = "".join(f"\n    | {line}" for line in event.tail)
            return f"pod {event.pod} has ended: {event.reason}" + (f", see {event.log}{tail}" if tail else "")
        case report.NodeLost():
            return f"node {event.node} is lost" + (f" with pod {event.pod}" if event.pod else "")
        case report.NodeAdded():
            return f"node {event.node} has joined"
        case report.PodEvicted():
            return f"pod {event.pod} is evicted and has {event.grace_s:g} s"
        case report.JobFailed():
            return f"job {event.job} has failed: {event.reason}"
        case report.JobSetRestarted():
            return f"the JobSet restarts (restart {event.attempt}): {event.reason}"
        case report.RunEnded():
            return f"run {event.outcome}: {event.reason}"
    return None


def _rewrite(rewrite: Rewrite) -> str:
    old: Any = "(not in the manifest)" if rewrite.old is None else rewrite.old
    return f"    {rewrite.field}: {old} -> {rewrite.new}  [{rewrite.reason}]"
