"""What the job and each rank did over time, as bars; their number does not grow with the number of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from holdfast.goodput.attempts import Attempt, reigning
from holdfast.goodput.columns import Floats, Spans
from holdfast.goodput.ledger import Ledger
from holdfast.report.series import Flags, surviving_by_attempt

MOST_RANKS = 16
"""Rows beyond these are not drawn; the job's row stands for all."""
PIXELS = 1000
"""Width of a row that details are kept for."""
SHARED_ROWS = 4
"""Ranks up to which each row keeps details for PIXELS; more rows share the bars that a browser draws at once."""

SEEN = 0.25
"""Part of a bar from which on a gap beside it is kept, however small both are: idle time must not look busy."""

_SPANS = {
    "restore": "restore",
    "checkpoint_wait": "checkpoint_wait",
    "drain": "checkpoint_wait",
    "stage": "checkpoint_blocked",
    "data": "data_stall",
    "import": "init",
    "process_group": "init",
    "build": "init",
    "data_open": "init",
}


class Bar(NamedTuple):
    """Start and end in job seconds, and the bucket."""

    start: float
    end: float
    bucket: str


def job_bars(ledger: Ledger) -> list[Bar]:
    """What the ledger says that the job did."""
    return merged([Bar(s.start, s.end, s.bucket) for s in ledger.segments], ledger.wall_s / PIXELS)


def rank_bars(ledger: Ledger) -> dict[int, list[Bar]]:
    """What each rank's own events say, for the time in which the job was their attempt's."""
    survivors = surviving_by_attempt(ledger)
    pixel = ledger.wall_s / PIXELS
    rows: dict[int, list[Bar]] = defaultdict(list)
    for attempt in reigning(ledger.attempts):
        kept = np.isin(attempt.finished.integers("step"), survivors[str(attempt)])
        for index in sorted({int(i) for spans in attempt.columns.by_name.values() for i in np.unique(spans.process)}):
            rank = attempt.columns.processes[index].rank  # the columns know all processes of the run
            if rank is not None and rank < MOST_RANKS:
                rows[rank] += _bars(attempt, index, kept, pixel)
    pixel *= max(1.0, len(rows) / SHARED_ROWS)
    return {rank: merged(rows[rank], pixel) for rank in sorted(rows) if rows[rank]}


def _bars(attempt: Attempt, process: int, kept: Flags, pixel: float) -> Iterator[Bar]:
    """What one process of an attempt did. kept: for each finished step of the attempt, whether it counts."""
    mine = attempt.finished.of_process(process)
    steps, counts = attempt.finished.take(mine), kept[mine]
    yield from _joined(steps.take(counts), "productive", attempt.until, pixel)
    yield from _joined(steps.take(~counts), "lost_work", attempt.until, pixel)
    for name, bucket in _SPANS.items():
        spans = attempt.columns.spans(name)
        yield from _joined(spans.take(spans.of_process(process)), bucket, attempt.until, pixel)


def _joined(spans: Spans, bucket: str, until: float, pixel: float) -> Iterator[Bar]:
    """Rows as bars, neighbours joined as `merged` would: columns first, for a long run has a million of them."""
    order = np.argsort(spans.start, kind="stable")
    start, end = spans.start[order], np.minimum(spans.end[order], until)
    start, end = start[start < end], end[start < end]
    if not len(start):
        return
    length: Floats = end - start
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    first = np.flatnonzero(np.r_[True, gap >= np.minimum(pixel, SEEN * np.maximum(length[1:], length[:-1]))])
    ends = np.maximum.reduceat(end, first)
    yield from (Bar(*times, bucket) for times in zip(start[first].tolist(), ends.tolist(), strict=True))


def merged(bars: Iterable[Bar], pixel: float) -> list[Bar]:
    """Bars of one bucket with less than a pixel (seconds) between them become one, unless the gap is longer than
    SEEN of them: a bucket keeps its share. What is then shorter than a third of a pixel is left to the tables."""
    joined: list[Bar] = []
    last_of: dict[str, int] = {}
    for bar in sorted(bars):
        index = last_of.get(bar.bucket)
        if index is not None:
            before = joined[index]
            if bar.start - before.end < min(pixel, SEEN * max(bar.end - bar.start, before.end - before.start)):
                joined[index] = before._replace(end=max(before.end, bar.end))
                continue
        last_of[bar.bucket] = len(joined)
        joined.append(bar)
    # What is drawn later lies on top: short things must not vanish below long ones.
    return sorted((bar for bar in joined if bar.end - bar.start > pixel / 3), key=lambda bar: bar.start - bar.end)
