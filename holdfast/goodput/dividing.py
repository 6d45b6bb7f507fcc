"""Which attempt each event of a rank belongs to."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from holdfast.goodput.columns import ABSENT, Codes, Events, Spans
from holdfast.goodput.timeline import Timeline

Key = tuple[int, int, int]
"""(generation, cycle, restart)."""

_NO_RANK = -1


def divide(timeline: Timeline) -> dict[Key, Events]:
    """The events of the ranks, by attempt. A process's restarts begin with attempt_start; what comes before its first
    one belongs to that."""
    events = timeline.columns
    starts = _starts(events)
    keys = sorted({key for found in starts.values() for _, key in found})
    number = {key: index for index, key in enumerate(keys)}
    first = np.full(len(events.processes), _NO_RANK, np.int32)
    for process, found in starts.items():
        first[process] = number[found[0][1]]
    several = {
        process: ([t for t, _ in found], np.array([number[key] for _, key in found], np.int32))
        for process, found in starts.items()
        if len(found) > 1
    }
    divided: dict[Key, dict[str, Spans]] = defaultdict(dict)
    for name, spans in events.by_name.items():
        for attempt, rows in _groups(_attempt_of_rows(spans, first, several)):
            divided[keys[attempt]][name] = spans.take(rows)
    return {key: Events(spans, events.processes, events.rests) for key, spans in divided.items()}


def _starts(events: Events) -> dict[int, list[tuple[float, Key]]]:
    """When each rank process began each of its attempts, in order of time. One that did not say so has one."""
    found: dict[int, list[tuple[float, Key]]] = {}
    spans = events.spans("attempt_start")
    restarts = spans.integers("restart")
    restarts = np.where(restarts == ABSENT, 0, restarts)
    for process, start, restart in zip(spans.process.tolist(), spans.start.tolist(), restarts.tolist(), strict=True):
        own = events.processes[process]
        if own.trains:
            found.setdefault(process, []).append((start, (own.generation, own.cycle, restart)))
    for times in found.values():
        times.sort(key=lambda pair: pair[0])
    for index, own in enumerate(events.processes):
        if own.trains:
            found.setdefault(index, [(0.0, (own.generation, own.cycle, 0))])
    return found


def _attempt_of_rows(spans: Spans, first: Codes, several: dict[int, tuple[list[float], Codes]]) -> Codes:
    attempt = first[spans.process]
    for process, (times, numbers) in several.items():
        rows = spans.of_process(process)
        index = np.searchsorted(times, spans.start[rows], side="right") - 1
        attempt[rows] = numbers[np.maximum(index, 0)]
    return attempt


def _groups(attempt: Codes) -> list[tuple[int, NDArray[np.int64] | slice]]:
    """The rows of each attempt: a slice where they stand together, which costs no copy."""
    together = bool((attempt[1:] >= attempt[:-1]).all())
    order = None if together else np.argsort(attempt, kind="stable")
    ordered = attempt if order is None else attempt[order]
    groups: list[tuple[int, NDArray[np.int64] | slice]] = []
    for number in np.unique(ordered).tolist():
        low, high = np.searchsorted(ordered, np.array((number, number + 1), ordered.dtype)).tolist()
        if number != _NO_RANK:
            groups.append((number, slice(low, high) if order is None else order[low:high]))
    return groups
