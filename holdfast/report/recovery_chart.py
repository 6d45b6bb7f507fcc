"""How each fault was overcome, part by part."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from holdfast.goodput.failures import PARTS, Recovery
from holdfast.goodput.report import MOST_LINES, heading, seconds, title
from holdfast.report.chart import AXIS, Chart, axis_title, frame, hints, label, row_keys, scale_of, values_font
from holdfast.report.palette import LINE, part_colour

ROW = 40
"""Pixels."""


def recovery_chart(recoveries: Sequence[Recovery], key: str) -> Chart | None:
    """The chart; None if no fault was overcome. Of many faults, those that took longest."""
    overcome = [recovery for recovery in recoveries if recovery.recovered_s is not None]
    if not overcome:
        return None
    shown = sorted(overcome, key=lambda r: -(r.recovered_s or 0.0))[:MOST_LINES]
    shown.sort(key=lambda recovery: recovery.fault.at)
    longest = max(recovery.recovered_s or 0.0 for recovery in shown)
    scale = scale_of(longest)
    rows = row_keys(len(shown))
    figure = go.Figure()
    for part in PARTS:
        lengths = [recovery.breakdown[part] or 0.0 for recovery in shown]
        tips = [f"{title(r)}: {heading(part)} {seconds(length)} s" for r, length in zip(shown, lengths, strict=True)]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=heading(part),
                y=rows,
                x=[scale(length) for length in lengths],
                hovertext=hints(tips),
                hoverinfo="text",
                marker={"color": part_colour(part), "line": {"width": 1, "color": LINE}},
            )
        )
    for row, recovery in zip(rows, shown, strict=True):
        figure.add_annotation(
            x=scale(recovery.recovered_s or 0.0),
            y=row,
            text=f"{seconds(recovery.recovered_s)} s",
            showarrow=False,
            xanchor="left",
            xshift=5,
            font=values_font(),
        )
    height = len(shown) * ROW + AXIS
    frame(figure, height, barmode="stack")
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=rows[::-1],
        tickvals=rows,
        ticktext=[_row_label(recovery) for recovery in shown],
        range=[-0.5, len(rows) - 0.5],
        fixedrange=True,
    )
    figure.update_xaxes(
        range=[0, scale(longest) * 1.24], title=axis_title(f"time since the fault ({scale.unit})"), fixedrange=True
    )
    cut = f" The {len(shown)} longest of {len(overcome)} are drawn." if len(shown) < len(overcome) else ""
    slowest = max(shown, key=lambda recovery: recovery.recovered_s or 0.0)
    says = (
        f"{len(overcome)} of {len(recoveries)} faults were overcome; the slowest, {title(slowest)}, took "
        f"{seconds(slowest.recovered_s)} s.{cut}"
    )
    return Chart(key, "How each fault was overcome", says, figure, height)


def _row_label(recovery: Recovery) -> str:
    fault = recovery.fault
    place = [f"rank {fault.rank}"] if fault.rank is not None else []
    place += [f"step {fault.step}"] if fault.step is not None else []
    return label(fault.kind) + ("<br>" + ", ".join(place) if place else "")
