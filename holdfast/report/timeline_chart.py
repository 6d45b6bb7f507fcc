"""The timeline: a row for faults, commits, attempts and the job, and one for each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

import plotly.graph_objects as go

from holdfast.goodput.attempts import reigning
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.report import seconds, title
from holdfast.report.bars import MOST_RANKS, Bar, job_bars, rank_bars
from holdfast.report.chart import AXIS, Chart, Scale, axis_title, frame, scale_of, spoken
from holdfast.report.palette import BAND, COMMIT, FAULT, INK, LINE, SOFT, bucket_colour
from holdfast.report.run import ReportedRun

ROW = 26
"""Pixels."""
MOST_LINES = 60
"""Faults that get a line through all rows; with more of them the lines would hide the rows."""
MOST_MARKS = 500
"""Marks in one row. Of marks that lie closer than that together, the first is drawn."""
FAULTS, COMMITS, ATTEMPTS, JOB = "faults", "commits", "attempts", "job"


def timeline_chart(run: ReportedRun, key: str) -> Chart:
    """The chart. Times count from the start of the run."""
    ledger = run.ledger
    scale = scale_of(ledger.wall_s)
    ranks = rank_bars(ledger)
    rows = {JOB: job_bars(ledger), **{f"rank {rank}": bars for rank, bars in ranks.items()}}
    figure = go.Figure()
    figure.add_trace(_attempts(run, scale))
    for trace in _buckets(rows, ledger.start, scale):
        figure.add_trace(trace)
    figure.add_trace(_commits(run, scale))
    figure.add_trace(_faults(run, scale))
    height = (len(rows) + 3) * ROW + AXIS
    frame(figure, height, barmode="overlay", bargap=0.18, uniformtext={"minsize": 10, "mode": "hide"})
    order = [FAULTS, COMMITS, ATTEMPTS, *rows]
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=order[::-1],
        range=[-0.5, len(order) - 0.5],
        fixedrange=True,
    )
    figure.update_xaxes(range=[0, scale(ledger.wall_s)], title=axis_title(f"time since the start ({scale.unit})"))
    if len(ledger.recoveries) <= MOST_LINES:
        for recovery in ledger.recoveries:
            x = scale(recovery.fault.at - ledger.start)
            line = {"color": FAULT, "width": 1, "dash": "dot"}
            figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line=line, opacity=0.75)
    return Chart(key, "What the job and each rank did", _says(run, len(ranks)), figure, height)


def buckets_drawn(run: ReportedRun) -> list[str]:
    """The buckets that the timeline may show, in the ledger's order."""
    drawn = {bar.bucket for bars in rank_bars(run.ledger).values() for bar in bars}
    return [bucket for bucket in BUCKETS if run.ledger.buckets[bucket] > 0 or bucket in drawn]


def thinned(times: Iterable[float], wall: float) -> list[int]:
    """Indices of those of the ascending times that can be told apart among MOST_MARKS."""
    kept: list[int] = []
    last = float("-inf")
    for index, time in enumerate(times):
        if time - last >= wall / MOST_MARKS:
            kept.append(index)
            last = time
    return kept


def _buckets(rows: dict[str, list[Bar]], start: float, scale: Scale) -> list[go.Bar]:
    """One trace per bucket; the bucket that has the longest bar is drawn first, so that short ones lie on top."""
    of: dict[str, list[tuple[str, Bar]]] = defaultdict(list)
    for row, bars in rows.items():
        for bar in bars:
            of[bar.bucket].append((row, bar))
    longest = {bucket: max(bar.end - bar.start for _, bar in placed) for bucket, placed in of.items()}
    traces = []
    for bucket in sorted(of, key=lambda name: -longest[name]):
        placed = of[bucket]
        tips = [
            f"{row}: {bucket}<br>{seconds(bar.end - bar.start)} s, from {seconds(bar.start - start)} s"
            for row, bar in placed
        ]
        traces.append(
            go.Bar(
                orientation="h",
                name=bucket,
                y=[row for row, _ in placed],
                base=[scale(bar.start - start) for _, bar in placed],
                x=[scale(bar.end - bar.start) for _, bar in placed],
                hovertext=tips,
                hoverinfo="text",
                marker={"color": bucket_colour(bucket), "line": {"width": 0}},
            )
        )
    return traces


def _attempts(run: ReportedRun, scale: Scale) -> go.Bar:
    attempts, start = reigning(run.ledger.attempts), run.ledger.start
    tips = [
        f"attempt {a} (generation, cycle, restart)<br>{len(a.steps)} steps in {seconds(a.until - a.begin)} s"
        for a in attempts
    ]
    return go.Bar(
        orientation="h",
        name=ATTEMPTS,
        y=[ATTEMPTS] * len(attempts),
        base=[scale(max(0.0, a.begin - start)) for a in attempts],
        x=[scale(a.until - max(a.begin, start)) for a in attempts],
        text=[str(a) for a in attempts],
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        insidetextfont={"size": 10, "color": INK},
        hovertext=tips,
        hoverinfo="text",
        cliponaxis=True,
        marker={"color": BAND, "line": {"width": 1, "color": LINE}},
    )


def _commits(run: ReportedRun, scale: Scale) -> go.Scatter:
    ledger = run.ledger
    commits = sorted(run.timeline.named("commit"), key=lambda event: event.start)
    kept = [commits[i] for i in thinned((event.start for event in commits), ledger.wall_s)]
    return go.Scatter(
        mode="markers",
        name=COMMITS,
        x=[scale(event.start - ledger.start) for event in kept],
        y=[COMMITS] * len(kept),
        hovertext=[
            f"step {event.whole('step')} committed at {seconds(event.start - ledger.start)} s" for event in kept
        ],
        hoverinfo="text",
        marker={"symbol": "diamond", "size": 8, "color": COMMIT},
    )


def _faults(run: ReportedRun, scale: Scale) -> go.Scatter:
    ledger = run.ledger
    kept = [ledger.recoveries[i] for i in thinned((r.fault.at for r in ledger.recoveries), ledger.wall_s)]
    tips = [
        f"{escape(title(r))}<br>at {seconds(r.fault.at - ledger.start)} s; "
        f"training again in {seconds(r.recovered_s)} s by {r.layer or 'nobody'}"
        for r in kept
    ]
    return go.Scatter(
        mode="markers",
        name=FAULTS,
        x=[scale(r.fault.at - ledger.start) for r in kept],
        y=[FAULTS] * len(kept),
        hovertext=tips,
        hoverinfo="text",
        cliponaxis=False,
        marker={"symbol": "triangle-down", "size": 11, "color": FAULT, "line": {"width": 1, "color": SOFT}},
    )


def _says(run: ReportedRun, ranks: int) -> str:
    ledger = run.ledger
    attempts: Sequence[object] = reigning(ledger.attempts)
    faults = "; ".join(f"{title(r)} at {seconds(r.fault.at - ledger.start)} s" for r in ledger.recoveries[:8])
    more = f"; and {len(ledger.recoveries) - 8} more" if len(ledger.recoveries) > 8 else ""
    left_out = f" Of {ledger.ranks} ranks the first {ranks} are drawn." if ledger.ranks > MOST_RANKS else ""
    return (
        f"{spoken(ledger.wall_s)}; attempts: {len(attempts)}; commits: {len(ledger.saves.committed)}. "
        f"Faults: {faults or 'none'}{more}.{left_out}"
    )
