"""What the job was doing whenever it was not inside a step: one segment after the other, without a hole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE, Attempt, changed
from holdfast.goodput.failures import Failure
from holdfast.goodput.timeline import Timeline

RESTART = {IN_PROCESS: "restart_in_process", IN_JOB: "restart_in_job", NODE: "node_replacement"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of job time (seconds) that belongs to one bucket."""

    start: float
    end: float
    bucket: str


@dataclass(frozen=True)
class Window:
    """Start and end of the run in job seconds, and the times at which `holdfast run` was called again on its folder."""

    start: float
    end: float
    started_again: tuple[float, ...]


class _Tape:
    """Segments in order, each from where the last one ended."""

    def __init__(self, window: Window) -> None:
        self.segments: list[Segment] = []
        self._at = window.start
        self._end = window.end

    def until(self, time: float, bucket: str) -> None:
        """The job did this until `time`. A time before the last one adds nothing."""
        time = min(time, self._end)
        if time > self._at:
            self.segments.append(Segment(self._at, time, bucket))
            self._at = time


def find_window(timeline: Timeline) -> Window:
    """From the runner's run_start, else the first pod or process, to the last run_end, else the last event."""
    if not len(timeline.columns):
        return Window(0.0, 0.0, ())
    starts = [event.start for event in timeline.named("run_start")]
    first = starts or [event.start for event in timeline.named("pod_start", "process_start")]
    first = first or [timeline.columns.start()]
    ends = [event.end for event in timeline.named("run_end")]
    last = timeline.columns.end()
    if ends and max(ends) >= max(first):
        last = max(ends)
    return Window(min(first), max(last, min(first)), tuple(sorted(starts)[1:]))


def find_phases(
    timeline: Timeline, window: Window, attempts: Sequence[Attempt], failures: Sequence[Failure]
) -> list[Segment]:
    """Segments that cover the window. attempts: the reigning ones. The ledger lays steps and waits over them."""
    tape = _Tape(window)
    by_attempt = {failure.attempt: failure for failure in failures}
    if not attempts:
        tape.until(_first_pod(timeline, window.start, window.end), "queue")
        tape.until(window.end, "init")
    for index, attempt in enumerate(attempts):
        bucket = _before_first_step(timeline, window, attempts, by_attempt, index, tape)
        _attempt(tape, attempt, by_attempt.get(index), bucket)
    # A complete run shuts down, a failed one has ended; what a run does that simply stops logging is not known.
    known = bool(attempts) and (attempts[-1].complete or len(attempts) - 1 in by_attempt)
    tape.until(window.end, "other" if known else "unattributed")
    return tape.segments


def _attempt(tape: _Tape, attempt: Attempt, failure: Failure | None, before: str) -> None:
    """One attempt: what leads to its first step, then the gaps between its steps, then how it ended."""
    failed_at = failure.at if failure else math.inf
    first, last = attempt.first_step_start, attempt.last_step_end
    tape.until(min(attempt.until, failed_at, math.inf if first is None else first), before)
    if last is not None:
        tape.until(min(last, failed_at), "unattributed")
    if failure:
        # The step that was under way is lost. It has no end, so it left no event.
        tape.until(failure.at, before if first is None else "lost_work")
        tape.until(failure.noticed, "detection" if failure.evident else "unattributed")
    elif attempt.complete:
        tape.until(attempt.until, "other")


def _before_first_step(
    timeline: Timeline,
    window: Window,
    attempts: Sequence[Attempt],
    failures: Mapping[int, Failure],
    index: int,
    tape: _Tape,
) -> str:
    """The bucket of the time that leads to this attempt's first step; records the queue time before it, if any."""
    attempt = attempts[index]
    if index == 0:
        tape.until(_first_pod(timeline, window.start, attempt.begin), "queue")
        return "init"
    again = [t for t in window.started_again if attempts[index - 1].begin < t <= attempt.begin]
    if again:
        stopped = timeline.columns.latest_end(again[0], without="run_start")
        tape.until(again[0] if stopped is None else stopped, "other")
        tape.until(_first_pod(timeline, again[-1], attempt.begin), "queue")
        return "init"
    # Attempts that died on the way are a part of the restart that in the end led to a step.
    cause = index - 1
    while cause > 0 and cause not in failures and not attempts[cause].steps:
        cause -= 1
    goal = next((i for i in range(index, len(attempts)) if attempts[i].steps or i in failures), index)
    return RESTART[changed(attempts[cause], attempts[goal])]


def _first_pod(timeline: Timeline, after: float, limit: float) -> float:
    """When the first pod after a time started, at the latest at `limit`: until then the run waits in the queue."""
    return min([event.start for event in timeline.named("pod_start") if event.start >= after] + [limit])
