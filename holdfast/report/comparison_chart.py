"""Several runs side by side: the share of each bucket in the wall time of each run."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from holdfast.goodput.ledger import BUCKETS
from holdfast.report.chart import AXIS, Chart, axis_title, frame, hints, label, row_keys
from holdfast.report.palette import LINE, bucket_colour
from holdfast.report.run import ReportedRun
from holdfast.report.what_if import Change, WhatIf

ROW = 44
"""Pixels."""


def comparison_chart(runs: Sequence[ReportedRun], key: str) -> Chart:
    """One bar per run, as long for each, so that shares can be compared."""
    rows = row_keys(len(runs))
    figure = go.Figure()
    for bucket in BUCKETS:
        shares = [run.ledger.buckets[bucket] / run.ledger.wall_s if run.ledger.wall_s else 0.0 for run in runs]
        if not any(shares):
            continue
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=bucket,
                y=rows,
                x=[100 * share for share in shares],
                hovertext=hints([f"{run.name}: {bucket} {s:.2%}" for run, s in zip(runs, shares, strict=True)]),
                hoverinfo="text",
                marker={"color": bucket_colour(bucket), "line": {"width": 1, "color": LINE}},
            )
        )
    height = len(rows) * ROW + AXIS
    frame(figure, height, barmode="stack")
    _named_rows(figure, rows, [f"{i + 1}  {run.name}" for i, run in enumerate(runs)])
    figure.update_xaxes(range=[0, 100], title=axis_title("share of the wall time (%)"), fixedrange=True)
    trained = {run.name: run.ledger.measures.ettr for run in runs}
    best = max(trained, key=trained.__getitem__)
    says = "Trained: " + "; ".join(f"{name} {share:.1%}" for name, share in trained.items()) + f". Most: {best}."
    return Chart(key, "Shares of wall time, run by run", says, figure, height)


def what_if_chart(what_if: WhatIf, key: str) -> Chart:
    """Expected goodput as it is and after each change, with its band. Raises ValueError for no change."""
    every = (what_if.as_is, *what_if.changes)
    rows = row_keys(len(every))
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=rows,
            x=[100 * change.goodput for change in every],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [100 * max(0.0, (change.high or 0.0) - change.goodput) for change in every],
                "arrayminus": [100 * max(0.0, change.goodput - _low(change)) for change in every],
                "thickness": 1.5,
                "width": 4,
            },
            hovertext=hints([f"{c.name}: {c.goodput:.2%} ({band(c)})" for c in every]),
            hoverinfo="text",
            marker={"color": [bucket_colour("init"), *[bucket_colour("productive")] * len(what_if.changes)]},
        )
    )
    height = len(rows) * ROW + AXIS
    frame(figure, height)
    _named_rows(figure, rows, [change.name for change in every])
    low = max(0.0, 100 * min(min(_low(change), change.goodput) for change in every) - 5)
    figure.update_xaxes(range=[low, 100], title=axis_title("expected goodput (%), computed"), fixedrange=True)
    best = max(what_if.changes, key=lambda change: change.goodput)
    says = f"As it is {what_if.as_is.goodput:.2%}; of the changes, {best.name} gives most, {best.goodput:.2%}."
    return Chart(key, "What single changes would buy", says, figure, height)


def band(change: Change) -> str:
    """In words; a dash for none."""
    return "-" if change.low is None or change.high is None else f"{change.low:.2%} to {change.high:.2%}"


def _low(change: Change) -> float:
    return change.goodput if change.low is None else change.low


def _named_rows(figure: go.Figure, rows: Sequence[str], names: Sequence[str]) -> None:
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=list(rows)[::-1],
        tickvals=list(rows),
        ticktext=[label(name) for name in names],
        range=[-0.5, len(rows) - 0.5],
        fixedrange=True,
    )
