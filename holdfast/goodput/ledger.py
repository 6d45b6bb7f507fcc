"""The ledger: every second of a run belongs to exactly one bucket, and the buckets sum to the run's wall time.

Job time is accounted, not the time of single ranks: at each moment the job does what its ranks' spans say, and a rank
that waits for a slower peer does what the job does. So the numbers mean the same with 2 ranks and with 1000. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.goodput.attempts import Attempt, Key, find_attempts, reigning, surviving_steps
from holdfast.goodput.failures import Failure, Recovery, find_failures, find_recoveries
from holdfast.goodput.hidden import find_hidden
from holdfast.goodput.phases import Segment, find_phases, find_window
from holdfast.goodput.saves import Saves, find_saves
from holdfast.goodput.timeline import Anomaly, Timeline

SCHEMA = 1

BUCKETS: Mapping[str, str] = {
    "productive": "steps whose work is part of the result",
    "lost_work": "steps that were executed again later, and the step under way when a fault struck",
    "checkpoint_blocked": "a step waited for the copy of its state",
    "checkpoint_hidden": "steps slowed down by a save in the background",
    "checkpoint_wait": "waited for the save before, or for the last one at the end",
    "restore": "loading a checkpoint",
    "data_stall": "a step waited for data",
    "init": "from the first pod to the first step",
    "compile": "compilation, where the trainer logs it",
    "detection": "from the fault until somebody noticed",
    "restart_in_process": "restart within the same processes, after detection",
    "restart_in_job": "new processes in the same pods, after detection",
    "node_replacement": "new or other pods, after detection",
    "queue": "no pod had started: before the first one, or between two calls of holdfast run",
    "degraded": "slowed down by a straggler (not measured yet: always 0)",
    "other": "shutdown after the last step, and after a final failure",
    "unattributed": "no event says what the job did",
}
"""Name of each bucket and what it means, in the order of the design. All are always present."""

# The activity that wins where spans of several ranks overlap. A rolled-back step is lost whole, with its waits.
_ORDER = (
    "lost_work",
    "restore",
    "checkpoint_wait",
    "checkpoint_blocked",
    "data_stall",
    "compile",
    "checkpoint_hidden",
    "productive",
)
_SPANS = {
    "restore": "restore",
    "checkpoint_wait": "checkpoint_wait",
    "drain": "checkpoint_wait",
    "stage": "checkpoint_blocked",
    "data": "data_stall",
    "compile": "compile",
}


@dataclass(frozen=True)
class Ledger:
    """A run's wall time, accounted. Times are job seconds; origin is the wall-clock time of second 0."""

    origin: float
    start: float
    wall_s: float
    ranks: int
    steps: int
    """Distinct steps in the final state."""
    buckets: Mapping[str, float]
    """Seconds of job wall time (rank-seconds / ranks); they sum to wall_s."""
    segments: tuple[Segment, ...]
    attempts: tuple[Attempt, ...]
    recoveries: tuple[Recovery, ...]
    saves: Saves
    anomalies: tuple[Anomaly, ...]

    @property
    def goodput(self) -> float:
        """Productive part of the wall time, 0 to 1. 0 for an empty log."""
        return self.buckets["productive"] / self.wall_s if self.wall_s else 0.0

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "wall_s": self.wall_s,
            "ranks": self.ranks,
            "steps": self.steps,
            "goodput": self.goodput,
            "buckets": dict(self.buckets),
            "attempts": [
                {"attempt": str(a), "begin_s": a.begin - self.start, "steps": len(a.steps), "complete": a.complete}
                for a in self.attempts
            ],
            "recoveries": [recovery_summary(recovery, self.start) for recovery in self.recoveries],
            "checkpoints": self.saves.summary(),
            "anomalies": [{"kind": a.kind, "where": a.where, "text": a.text} for a in self.anomalies],
        }


def recovery_summary(recovery: Recovery, start: float) -> dict[str, object]:
    """Plain data of one recovery; `at_s` counts from the start of the run."""
    fault = recovery.fault
    return {
        "id": fault.id,
        "kind": fault.kind,
        "rank": fault.rank,
        "step": fault.step,
        "at_s": fault.at - start,
        "layer": recovery.layer,
        "detected_s": recovery.detected_s,
        "recovered_s": recovery.recovered_s,
        "lost_steps": recovery.lost_steps,
        "breakdown": dict(recovery.breakdown),
    }


def account(timeline: Timeline) -> Ledger:
    """The ledger of a timeline; of an empty one, zeros."""
    window = find_window(timeline)
    attempts, anomalies = find_attempts(timeline, window.end)
    survivors = surviving_steps(attempts)
    active = reigning(attempts)
    failures = find_failures(timeline, active, window.started_again, window.end)
    phases = find_phases(timeline, window, active, failures)
    segments = _lay_over(phases, list(_activities(active, survivors, failures)))
    parts: dict[str, list[float]] = {bucket: [] for bucket in BUCKETS}
    for segment in segments:
        parts[segment.bucket].append(segment.end - segment.start)
    world = max((process.world_size for process in timeline.processes), default=0)
    seen = {process.rank for process in timeline.processes if process.rank is not None}
    return Ledger(
        origin=timeline.origin,
        start=window.start,
        wall_s=window.end - window.start,
        ranks=world or len(seen),
        steps=len(survivors),
        buckets={bucket: math.fsum(seconds) for bucket, seconds in parts.items()},
        segments=tuple(segments),
        attempts=attempts,
        recoveries=find_recoveries(timeline, active, failures),
        saves=find_saves(timeline, active),
        anomalies=(*timeline.anomalies, *anomalies),
    )


def _activities(
    attempts: Sequence[Attempt], survivors: Mapping[int, Key], failures: Sequence[Failure]
) -> Iterator[tuple[float, float, int]]:
    """What ranks did, as (start, end, index in _ORDER), cut to the time in which the job was their attempt's."""
    failed_at = {failure.attempt: failure.at for failure in failures}
    for index, attempt in enumerate(attempts):
        # After a fault a rank only waits, whatever its span is called, unless it went on to finish steps.
        end_of_waits = max(failed_at.get(index, math.inf), attempt.last_step_end or 0.0)
        for write in find_hidden(attempt):
            yield from ((start, end, _ORDER.index("checkpoint_hidden")) for start, end in write.slower)
        for event in attempt.events:
            step = event.finished_step
            if step is not None:
                bucket = "productive" if survivors.get(step) == attempt.key else "lost_work"
                end = min(event.end, attempt.until)
            elif event.name in _SPANS:
                bucket = _SPANS[event.name]
                end = min(event.end, attempt.until, end_of_waits)
            else:
                continue
            if event.start < end:
                yield event.start, end, _ORDER.index(bucket)


def _lay_over(phases: Sequence[Segment], activities: Sequence[tuple[float, float, int]]) -> list[Segment]:
    """Exclusive segments: the first activity of _ORDER that goes on, else the phase. They cover exactly the phases."""
    if not phases:
        return []
    changes: dict[float, list[tuple[int, int]]] = defaultdict(list)
    start, end = phases[0].start, phases[-1].end
    for begin, finish, level in activities:
        if begin < end and finish > start:
            changes[max(begin, start)].append((level, 1))
            changes[min(finish, end)].append((level, -1))
    times = sorted({*changes, *(phase.start for phase in phases), end})
    active = [0] * len(_ORDER)
    segments: list[Segment] = []
    position = 0
    for time, until in pairwise(times):
        for level, change in changes[time]:
            active[level] += change
        while phases[position].end <= time:
            position += 1
        bucket = next((name for name, count in zip(_ORDER, active, strict=True) if count), phases[position].bucket)
        if segments and segments[-1].bucket == bucket:
            segments[-1] = Segment(segments[-1].start, until, bucket)
        else:
            segments.append(Segment(time, until, bucket))
    return segments
