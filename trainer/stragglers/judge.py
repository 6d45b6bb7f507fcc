"""Who is slow, from the own times of all ranks. Pure: no clock, no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, median_low

WINDOW_STEPS = 10
"""Steps of which a rank tells the median: one save, one collection of garbage or one slow file in them changes nothing.
"""
IN_A_ROW = 3
"""Windows in a row in which a rank must be slow to be named, and in which it must keep up to be taken back: named at
most 40 steps after it became slow, and not for a disturbance of less than 16 steps."""
SIGMA = 1.4826
"""Standard deviation of a normal distribution, in units of its median absolute deviation."""
DEVIATIONS = 4.0
"""Slow is what lies so many deviations above the median, where ranks differ by themselves."""


@dataclass(frozen=True)
class Pace:
    """Medians of one rank over one window, in seconds: own time of a step, and the whole step."""

    own_s: float
    step_s: float
    node: str
    pod: str


@dataclass(frozen=True)
class Slow:
    """A rank that is slow. factor: its own time over the median of all ranks. share: part of each step in which others
    wait for it, 0 to 1."""

    rank: int
    pace: Pace
    median_s: float
    factor: float
    share: float


def slow_ranks(paces: Mapping[int, Pace], share: float) -> dict[int, Slow]:
    """Ranks whose own time exceeds the median of all by more than `share` of a step, and by more than ranks differ."""
    if len(paces) < 2:
        return {}
    # The lower one: where one of two nodes is slow, half of the ranks are.
    usual = median_low([pace.own_s for pace in paces.values()])
    spread = SIGMA * median_low([abs(pace.own_s - usual) for pace in paces.values()])
    step_s = median([pace.step_s for pace in paces.values()])
    least = max(share * step_s, DEVIATIONS * spread)
    found = {}
    for rank, pace in paces.items():
        excess = pace.own_s - usual
        if excess > least:
            factor = pace.own_s / usual if usual > 0 else float("inf")
            found[rank] = Slow(rank, pace, usual, factor, min(1.0, excess / step_s) if step_s > 0 else 1.0)
    return found


class Judge:
    """Remembers who was slow before. `window` gets the paces of all ranks, window by window."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._row: dict[int, int] = {}
        """rank -> windows in a row in which it was slow; below 0: in which a named one kept up."""
        self.named: dict[int, Slow] = {}

    def window(self, paces: Mapping[int, Pace]) -> tuple[list[Slow], list[Slow]]:
        """Those that are slow from now on, and those that no longer are."""
        found = slow_ranks(paces, self._share)
        for rank in paces:
            row, is_slow = self._row.get(rank, 0), rank in found
            self._row[rank] = max(1, row + 1) if is_slow else min(-1, row - 1)
        new = [slow for rank, slow in found.items() if self._row[rank] >= IN_A_ROW and rank not in self.named]
        over = [slow for rank, slow in self.named.items() if self._row.get(rank, 0) <= -IN_A_ROW]
        self.named.update({slow.rank: slow for slow in new})
        for slow in over:
            del self.named[slow.rank]
        return new, over
