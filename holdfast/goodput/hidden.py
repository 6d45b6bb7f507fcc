"""What a save costs although no step waits for it: the steps during the background write are slower than the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from holdfast.goodput.attempts import Attempt

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


def find_hidden(attempt: Attempt) -> list[Hidden]:
    """The background writes of an attempt, in order. Steps vary by themselves: what is above the median in one step is
    set off against what is below it in another of the same write, and a write never costs less than nothing.
    """
    writes = _writes(attempt)
    steps = sorted(attempt.steps.values())
    disturbed = {span: next((w for w in writes if span[0] < w[2] and w[1] < span[1]), None) for span in steps}
    first = steps[0] if steps else None
    usual = [end - start for (start, end), write in disturbed.items() if write is None and (start, end) != first]
    if len(usual) < FEWEST:
        return [Hidden(step, start, end, 0.0, ()) for step, start, end in writes]
    typical = median(usual)
    found = []
    for write in writes:
        spans = [span for span, by in disturbed.items() if by == write]
        excess = [end - start - typical for start, end in spans]
        above = sum(seconds for seconds in excess if seconds > 0)
        cost = max(0.0, sum(excess))
        share = cost / above if above else 0.0
        slower = tuple((end - e * share, end) for (_, end), e in zip(spans, excess, strict=True) if e * share > 0)
        found.append(Hidden(*write, seconds=cost, slower=slower))
    return found


def _writes(attempt: Attempt) -> Sequence[tuple[int, float, float]]:
    """(step, start, end) of each save from its copy to the end of its write, over all ranks and tiers: the copy runs
    during the next step, and the update may wait for it."""
    spans: dict[int, tuple[float, float]] = {}
    for event in attempt.events:
        step = event.whole("step")
        if event.name in ("stage", "write") and step is not None:
            start, end = spans.get(step, (event.start, event.end))
            spans[step] = (min(start, event.start), max(end, event.end))
    return sorted(((step, start, end) for step, (start, end) in spans.items()), key=lambda write: write[1])
