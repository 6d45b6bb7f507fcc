"""What ranks did, laid over what the job was doing: exclusive segments that cover the run without a hole."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from holdfast.goodput.attempts import Attempt
from holdfast.goodput.columns import Floats
from holdfast.goodput.dividing import Key
from holdfast.goodput.failures import Failure
from holdfast.goodput.hidden import find_hidden
from holdfast.goodput.phases import Segment

# The activity that wins where spans of several ranks overlap. A rolled-back step is lost whole, with its waits.
_ORDER = (
    "lost_work",
    "restore",
    "checkpoint_wait",
    "checkpoint_blocked",
    "data_stall",
    "compile",
    "other",
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
    "eval": "other",
}

Activity = tuple[str, Floats, Floats]
"""(bucket, starts, ends): when it went on, in job seconds; each interval is longer than 0."""


def activities(
    attempts: Sequence[Attempt], survivors: Mapping[int, Key], failures: Sequence[Failure]
) -> Iterator[Activity]:
    """What ranks did, cut to the time in which the job was their attempt's."""
    failed_at = {failure.attempt: failure.at for failure in failures}
    for index, attempt in enumerate(attempts):
        # After a fault a rank only waits, whatever its span is called, unless it went on to finish steps.
        end_of_waits = max(failed_at.get(index, math.inf), attempt.last_step_end or 0.0)
        slower = np.array([part for write in find_hidden(attempt) for part in write.slower]).reshape(-1, 2)
        yield "checkpoint_hidden", slower[:, 0], slower[:, 1]
        for name, bucket in _SPANS.items():
            spans = attempt.columns.spans(name)
            yield _cut(bucket, spans.start, spans.end, min(attempt.until, end_of_waits))
        yield from _steps(attempt, survivors)


def _steps(attempt: Attempt, survivors: Mapping[int, Key]) -> Iterator[Activity]:
    steps = attempt.extents.steps
    survived = np.array([survivors.get(step) == attempt.key for step in steps.tolist()], bool)
    finished = attempt.finished
    counts = survived[np.searchsorted(steps, finished.integers("step"))]
    for bucket, rows in (("productive", counts), ("lost_work", ~counts)):
        # Most attempts have only one kind: then nothing is copied.
        start, end = (finished.start, finished.end) if rows.all() else (finished.start[rows], finished.end[rows])
        yield _cut(bucket, start, end, attempt.until)


def _cut(bucket: str, start: Floats, end: Floats, limit: float) -> Activity:
    end = np.minimum(end, limit)
    longer = start < end
    return (bucket, start, end) if longer.all() else (bucket, start[longer], end[longer])


def union(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The same time as intervals that neither overlap nor touch, in order.

    With starts and ends sorted each for itself, an interval of the union begins where as many have ended as had begun.
    """
    starts, ends = np.sort(starts), np.sort(ends)
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] > ends[:-1])))[: len(starts)]
    return starts[begins], ends[np.append(begins[1:], len(ends)) - 1] if len(ends) else ends


def lay_over(phases: Sequence[Segment], found: Iterator[Activity]) -> list[Segment]:
    """Exclusive segments: the first activity of _ORDER that goes on, else the phase. They cover exactly the phases."""
    if not phases:
        return []
    changes: dict[float, list[tuple[int, int]]] = defaultdict(list)
    start, end = phases[0].start, phases[-1].end
    for bucket, begins, finishes in found:
        level = _ORDER.index(bucket)
        for begin, finish in zip(*(times.tolist() for times in union(begins, finishes)), strict=True):
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
        _append(segments, Segment(time, until, bucket))
    return segments


def split_degraded(segments: Sequence[Segment], attempts: Sequence[Attempt], ranks: int) -> list[Segment]:
    """Put the share of productive time that the missing ranks would have saved into `degraded`.

    With the same global batch on fewer ranks a step takes ranks / world size times as long. So of each productive piece
    (cut at ends of steps, so that the share lies where it arose) the last 1 - world size / ranks is degraded.
    """
    begins = [attempt.begin for attempt in attempts]
    split: list[Segment] = []
    for segment in segments:
        if segment.bucket != "productive":
            _append(split, segment)
            continue
        for start, end, share in _pieces(segment, attempts, begins, ranks):
            middle = end - (end - start) * share
            _append(split, Segment(start, middle, "productive"))
            _append(split, Segment(middle, end, "degraded"))
    return split


def _pieces(
    segment: Segment, attempts: Sequence[Attempt], begins: Sequence[float], ranks: int
) -> Iterator[tuple[float, float, float]]:
    """(start, end, missing share of the ranks) of a segment's parts: cut where the job changes hands, and at the ends
    of the steps of an attempt that lacks ranks."""
    cuts = [time for time in begins if segment.start < time < segment.end]
    for low, high in pairwise([segment.start, *cuts, segment.end]):
        attempt = attempts[max(0, bisect_right(begins, low) - 1)]
        share = max(0.0, 1 - attempt.world_size / ranks) if ranks else 0.0
        ends = np.unique(attempt.extents.end) if share else np.empty(0)
        inner = ends[np.searchsorted(ends, low, "right") : np.searchsorted(ends, high)].tolist()
        yield from ((start, end, share) for start, end in pairwise([low, *inner, high]))


def _append(segments: list[Segment], segment: Segment) -> None:
    """Add a segment; one that is empty not at all, one that goes on with the last one's bucket as a part of it."""
    if segment.end <= segment.start:
        return
    if segments and segments[-1].bucket == segment.bucket:
        segments[-1] = Segment(segments[-1].start, segment.end, segment.bucket)
    else:
        segments.append(segment)
