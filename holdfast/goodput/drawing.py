"""The timeline of a run as SVG: one row for the job, one per rank, a mark per fault. Size does not grow with steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from holdfast.goodput.attempts import Key, reigning, surviving_steps
from holdfast.goodput.ledger import BUCKETS, Ledger
from holdfast.goodput.report import seconds, title

COLOURS: Mapping[str, str] = {
    "productive": "#2a9d6f",
    "lost_work": "#d1495b",
    "checkpoint_blocked": "#2f6db3",
    "checkpoint_hidden": "#9db9dd",
    "checkpoint_wait": "#6497d3",
    "restore": "#8562b5",
    "data_stall": "#c678b4",
    "init": "#8a9099",
    "compile": "#a9aeb5",
    "detection": "#e2772e",
    "restart_in_process": "#f0c545",
    "restart_in_job": "#dba21a",
    "node_replacement": "#a8713c",
    "queue": "#b9bec5",
    "degraded": "#b8557c",
    "other": "#6b7078",
    "unattributed": "#555a62",
}
"""Readable on white and on near-black."""

WIDTH = 1000
LABELS = 76
ROW = 18
GAP = 4
MOST_RANKS = 16
"""Rows beyond these are not drawn; the job's row stands for all."""

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

Bar = tuple[float, float, str]
"""(start, end, bucket), in job seconds."""


def timeline_svg(ledger: Ledger) -> str:
    """The drawing. Empty for an empty ledger."""
    if not ledger.segments:
        return ""
    rows = {"job": [(s.start, s.end, s.bucket) for s in ledger.segments], **_rank_rows(ledger)}
    height = 22 + len(rows) * (ROW + GAP) + 22
    label = "What the job and each rank did over time"
    parts = [f'<svg viewBox="0 0 {LABELS + WIDTH + 8} {height}" role="img" aria-label="{label}">']
    for index, (name, bars) in enumerate(rows.items()):
        top = 22 + index * (ROW + GAP)
        parts.append(f'<text x="0" y="{top + 13}">{escape(name)}</text>')
        parts += _paths(_merged(bars, ledger), top, ledger)
    parts += _attempt_marks(ledger, height) + _fault_marks(ledger, height) + _axis(ledger, height)
    return "".join([*parts, "</svg>"])


def bucket_bar(ledger: Ledger) -> str:
    """The buckets as one stacked bar."""
    parts = [f'<svg viewBox="0 0 {WIDTH} 26" role="img" aria-label="Share of each bucket">']
    x = 0.0
    for bucket in BUCKETS:
        share = ledger.buckets[bucket] / ledger.wall_s if ledger.wall_s else 0.0
        if share > 0:
            label = f"{bucket}: {seconds(ledger.buckets[bucket])} s, {share:.1%}"
            parts.append(
                f'<rect x="{x:.2f}" width="{share * WIDTH:.2f}" height="26" fill="{COLOURS[bucket]}">'
                f"<title>{escape(label)}</title></rect>"
            )
            x += share * WIDTH
    return "".join([*parts, "</svg>"])


def _x(time: float, ledger: Ledger) -> float:
    return LABELS + (time - ledger.start) / ledger.wall_s * WIDTH


def _rank_rows(ledger: Ledger) -> dict[str, list[Bar]]:
    """What each rank's own events say, for the time in which the job was their attempt's."""
    survivors = surviving_steps(ledger.attempts)
    rows: dict[int, list[Bar]] = defaultdict(list)
    for attempt in reigning(ledger.attempts):
        for event in attempt.events:
            bucket = _bucket(event.name, event.finished_step, attempt.key, survivors)
            rank, end = event.process.rank, min(event.end, attempt.until)
            if bucket and rank is not None and rank < MOST_RANKS and event.start < end:
                rows[rank].append((event.start, end, bucket))
    return {f"rank {rank}": rows[rank] for rank in sorted(rows)}


def _bucket(name: str, finished: int | None, key: Key, survivors: Mapping[int, Key]) -> str | None:
    if finished is not None:
        return "productive" if survivors.get(finished) == key else "lost_work"
    return _SPANS.get(name)


def _merged(bars: Iterable[Bar], ledger: Ledger) -> list[Bar]:
    """Bars of one colour with less than a pixel between them become one, unless the gap is longer than they are: a
    colour keeps its share. What is then shorter than a third of a pixel is left to the tables, so that the drawing of a
    long run stays small."""
    pixel = ledger.wall_s / WIDTH
    merged: list[Bar] = []
    last_of: dict[str, int] = {}
    for start, end, bucket in sorted(bars):
        index = last_of.get(bucket)
        if index is not None:
            begun, ended, _ = merged[index]
            if start - ended < min(pixel, max(end - start, ended - begun)):
                merged[index] = (begun, max(ended, end), bucket)
                continue
        last_of[bucket] = len(merged)
        merged.append((start, end, bucket))
    # What is drawn later lies on top: short things must not vanish below long ones.
    return sorted((bar for bar in merged if bar[1] - bar[0] > pixel / 3), key=lambda bar: bar[0] - bar[1])


def _paths(bars: Sequence[Bar], top: int, ledger: Ledger) -> list[str]:
    """Bars with room for a pointer get a tooltip; the others of one colour are one path."""
    wide, narrow = [], defaultdict(list)
    for start, end, bucket in bars:
        left = _x(start, ledger)
        width = max(0.8, _x(end, ledger) - left)
        outline = f"M{left:.1f} {top}h{width:.1f}v{ROW}h-{width:.1f}z"
        if width < 4:
            narrow[bucket].append(outline)
            continue
        tip = f"{bucket} {seconds(start - ledger.start)} to {seconds(end - ledger.start)} s"
        wide.append(f'<path d="{outline}" fill="{COLOURS[bucket]}"><title>{tip}</title></path>')
    return wide + [f'<path d="{"".join(outlines)}" fill="{COLOURS[b]}"/>' for b, outlines in narrow.items()]


def _attempt_marks(ledger: Ledger, height: int) -> list[str]:
    parts, free = [], 0.0
    for attempt in reigning(ledger.attempts):
        x = _x(max(attempt.begin, ledger.start), ledger)
        parts.append(f'<path class="mark" d="M{x:.1f} 16v{height - 38}"/>')
        if x >= free:
            parts.append(f'<text x="{x:.1f}" y="12">{escape(str(attempt))}</text>')
            free = x + 60
    return parts


def _fault_marks(ledger: Ledger, height: int) -> list[str]:
    parts = []
    for recovery in ledger.recoveries:
        x = _x(recovery.fault.at, ledger)
        label = f"{title(recovery)}: again in {seconds(recovery.recovered_s)} s by {recovery.layer or 'nobody'}"
        parts.append(
            f'<g class="fault"><path d="M{x:.1f} 18v{height - 38}"/><path d="M{x - 5:.1f} 14h10l-5 8z"/>'
            f"<title>{escape(label)}</title></g>"
        )
    return parts


def _axis(ledger: Ledger, height: int) -> list[str]:
    texts = []
    for tenth in range(0, 11, 2):
        x = LABELS + WIDTH * tenth / 10
        anchor = "start" if tenth == 0 else "end" if tenth == 10 else "middle"
        texts.append(
            f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{seconds(ledger.wall_s * tenth / 10)} s</text>'
        )
    return texts
