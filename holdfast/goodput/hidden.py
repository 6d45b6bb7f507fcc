"""What a save costs although no step waits for it: the steps during the background write are slower than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from holdfast.goodput.attempts import Attempt, Extents
from holdfast.goodput.columns import Codes, Floats

FEWEST = 5
"""Undisturbed steps of an attempt that are needed to know how long its steps take."""


@dataclass(frozen=True)
class Hidden:
    """One background write, and what it cost.

    slower: (start, end) of the part of each step that is put down to it; their lengths sum to `seconds`.
    """

    step: int
    local: bool
    """Whether it went to the local tier."""
    seconds: float
    slower: tuple[tuple[float, float], ...]


class _Write(NamedTuple):
    """Job seconds in which a save may disturb the steps."""

    start: float
    end: float
    step: int
    local: bool


_NOBODY = -1


def find_hidden(attempt: Attempt) -> list[Hidden]:
    """The background writes of an attempt, in order. Steps vary by themselves: what is above the median in one step is
    set off against what is below it in another of the same write, and a write never costs less than nothing. Where
    writes overlap, a step is put down to the first, and of a write that has none left it is not known what it costs.
    None where too few steps tell how long one takes undisturbed.
    """
    writes = sorted([*_writes(attempt, local=False), *_writes(attempt, local=True)])
    order = np.lexsort((attempt.extents.end, attempt.extents.start))
    start, end = attempt.extents.start[order], attempt.extents.end[order]
    disturber = _disturber(start, end, writes)
    # The first step builds what the others reuse.
    usual = (end - start)[1:][disturber[1:] == _NOBODY]
    if len(usual) < FEWEST:
        return []
    excess = end - start - np.median(usual)
    found = []
    for index, write in enumerate(writes):
        rows = np.flatnonzero(disturber == index)
        if not len(rows) and ((start < write.end) & (write.start < end)).any():
            continue
        above = float(excess[rows][excess[rows] > 0].sum())
        cost = max(0.0, float(excess[rows].sum()))
        share = cost / above if above else 0.0
        slower = rows[excess[rows] * share > 0]
        parts = zip((end[slower] - excess[slower] * share).tolist(), end[slower].tolist(), strict=True)
        found.append(Hidden(write.step, write.local, cost, tuple(parts)))
    return found


def _writes(attempt: Attempt, *, local: bool) -> Iterator[_Write]:
    """Each save of a tier, over all ranks: from its copy, which runs during the next step and which the update may wait
    for, to the end of its write. That is logged when the training loop sees it, between two steps; a commit was there
    at its time."""
    columns = attempt.columns
    stage, write, persist = (
        spans.take(columns.local(spans) == local) for spans in map(columns.spans, ("stage", "write", "persist"))
    )
    committed = Extents.of(persist)
    commits = dict(zip(committed.steps.tolist(), committed.end.tolist(), strict=True))
    found = Extents.of(stage, write)
    for step, start, end in zip(found.steps.tolist(), found.start.tolist(), found.end.tolist(), strict=True):
        yield _Write(start, min(end, commits.get(step, end)), step, local)


def _disturber(start: Floats, end: Floats, writes: list[_Write]) -> Codes:
    """The first write that each step overlaps, by its place in writes; _NOBODY for an undisturbed step."""
    disturber = np.full(len(start), _NOBODY, np.int32)
    for index, write in reversed(list(enumerate(writes))):
        disturber[(start < write.end) & (write.start < end)] = index
    return disturber
