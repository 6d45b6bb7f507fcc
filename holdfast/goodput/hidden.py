"""What a save costs although no step waits for it: the steps during the background write are slower than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.goodput.attempts import Attempt, Extents
from holdfast.goodput.columns import Codes, Floats

FEWEST = 5
"""Undisturbed steps of an attempt that are needed to know how long its steps take."""


@dataclass(frozen=True)
class Hidden:
    """One background write: job seconds from its first rank's start to its last rank's end, and what it cost.

    slower: (start, end) of the part of each step that is put down to it; their lengths sum to `seconds`.
    """

    step: int
    start: float
    end: float
    seconds: float
    slower: tuple[tuple[float, float], ...]


_NOBODY = -1


def find_hidden(attempt: Attempt) -> list[Hidden]:
    """The background writes of an attempt, in order. Steps vary by themselves: what is above the median in one step is
    set off against what is below it in another of the same write, and a write never costs less than nothing.
    """
    writes = _writes(attempt)
    order = np.lexsort((attempt.extents.end, attempt.extents.start))
    start, end = attempt.extents.start[order], attempt.extents.end[order]
    disturber = _disturber(start, end, writes)
    # The first step builds what the others reuse.
    usual = (end - start)[1:][disturber[1:] == _NOBODY]
    if len(usual) < FEWEST:
        return [Hidden(step, begun, done, 0.0, ()) for step, begun, done in writes]
    excess = end - start - np.median(usual)
    found = []
    for index, write in enumerate(writes):
        rows = np.flatnonzero(disturber == index)
        above = float(excess[rows][excess[rows] > 0].sum())
        cost = max(0.0, float(excess[rows].sum()))
        share = cost / above if above else 0.0
        slower = rows[excess[rows] * share > 0]
        parts = zip((end[slower] - excess[slower] * share).tolist(), end[slower].tolist(), strict=True)
        found.append(Hidden(*write, seconds=cost, slower=tuple(parts)))
    return found


def _writes(attempt: Attempt) -> list[tuple[int, float, float]]:
    """(step, start, end) of each save from its copy to the end of its write, over all ranks and tiers: the copy runs
    during the next step, and the update may wait for it."""
    found = Extents.of(attempt.columns.spans("stage"), attempt.columns.spans("write"))
    writes = zip(found.steps.tolist(), found.start.tolist(), found.end.tolist(), strict=True)
    return sorted(writes, key=lambda write: write[1])


def _disturber(start: Floats, end: Floats, writes: list[tuple[int, float, float]]) -> Codes:
    """The first write that each step overlaps, by its place in writes; _NOBODY for an undisturbed step."""
    disturber = np.full(len(start), _NOBODY, np.int32)
    for index, (_, begun, done) in reversed(list(enumerate(writes))):
        disturber[(start < done) & (begun < end)] = index
    return disturber
