"""Loss and step time over the steps: what counts, what was rolled back, and where each attempt went on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from holdfast.goodput.columns import Floats, Integers
from holdfast.report.chart import Chart, axis_title, frame, spoken
from holdfast.report.palette import INK, KEPT, ROLLED_BACK, RUN_COLOURS, RUN_DASHES, SOFT
from holdfast.report.run import ReportedRun
from holdfast.report.series import MOST_POINTS, Steps, envelope

HEIGHT = 430
"""Pixels."""
MOST_LINES = 60
"""Restarts that get a line; with more of them the lines would hide the loss, and only the triangles are drawn."""
LOSS_ROOM, TIME_ROOM = (0.56, 0.95), (0.0, 0.39)
"""Parts of the height."""
UNEVEN = 20.0
"""Step times whose largest is this many times the median are drawn on a logarithmic axis, so that both can be read."""


def training_chart(run: ReportedRun, steps: Steps, key: str) -> Chart:
    """The chart of one run."""
    figure = go.Figure()
    order = np.argsort(steps.step[steps.kept], kind="stable")
    kept = steps.step[steps.kept][order]
    for values, axis, unit in ((steps.loss, "y", ""), (steps.seconds, "y2", " s")):
        _line(figure, kept, values[steps.kept][order], axis, unit, "kept")
        _rolled_back(figure, steps, values, axis, unit)
    restarts = steps.first_steps()[1:]
    for _, step in restarts if len(restarts) <= MOST_LINES else []:
        figure.add_shape(
            type="line", x0=step, x1=step, y0=0, y1=1, yref="paper", line={"color": SOFT, "width": 1, "dash": "dot"}
        )
    if restarts:
        figure.add_trace(_restart_marks(restarts))
    frame(figure, HEIGHT, margin={"l": 8, "r": 14, "t": 8, "b": 8})
    figure.update_layout(
        yaxis={"domain": LOSS_ROOM, "showgrid": True},
        yaxis2={"domain": TIME_ROOM, "showgrid": True, "type": "log" if _uneven(steps.seconds) else "linear"},
        yaxis3={"domain": (0, 1), "overlaying": "y", "visible": False, "range": [0, 1], "fixedrange": True},
        xaxis={"anchor": "y2", "title": axis_title("step"), "range": _around(steps.step), "domain": (0, 1)},
    )
    if not _uneven(steps.seconds):
        figure.update_layout(yaxis2={"rangemode": "tozero"})
    for words, top in (("loss", LOSS_ROOM[1]), ("seconds per step", TIME_ROOM[1])):
        figure.add_annotation(
            x=0,
            y=top,
            xref="paper",
            yref="paper",
            text=words,
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            font={"size": 12, "color": INK},
        )
    return Chart(key, "Loss and step time", _says(steps), figure, HEIGHT)


def loss_comparison_chart(runs: list[tuple[ReportedRun, Steps]], key: str) -> Chart:
    """The loss of several runs in one picture; rolled-back steps are left out."""
    figure = go.Figure()
    ends = []
    for index, (run, steps) in enumerate(runs):
        order = np.argsort(steps.step[steps.kept], kind="stable")
        x, y = envelope(steps.step[steps.kept][order], steps.loss[steps.kept][order], MOST_POINTS // 2)
        colour = RUN_COLOURS[index % len(RUN_COLOURS)]
        dash = RUN_DASHES[index % len(RUN_DASHES)]
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                name=f"run {index + 1}",
                line={"color": colour, "width": 1.8, "dash": dash},
                hovertemplate=f"run {index + 1}, step %{{x}}: %{{y:.4g}}<extra></extra>",
            )
        )
        ends.append(f"{run.name} ends at {y[-1]:.4g}" if len(y) else f"{run.name} logged no loss")
    frame(figure, 300)
    figure.update_xaxes(title=axis_title("step"))
    figure.update_yaxes(showgrid=True)
    return Chart(key, "Loss of each run", "Loss over steps: " + "; ".join(ends) + ".", figure, 300)


def _line(figure: go.Figure, x: Integers, y: Floats, axis: str, unit: str, name: str) -> None:
    points = envelope(x, y)
    figure.add_trace(
        go.Scatter(
            x=points[0],
            y=points[1],
            yaxis=axis,
            mode="lines",
            name=name,
            line={"color": KEPT, "width": 1.6},
            hovertemplate=f"step %{{x}}: %{{y:.4g}}{unit}<extra></extra>",
        )
    )


def _rolled_back(figure: go.Figure, steps: Steps, values: Floats, axis: str, unit: str) -> None:
    """One line per attempt, all in one trace: a gap lies between two of them."""
    xs, ys = [], []
    share = max(4, MOST_POINTS // max(1, len(steps.attempts)))
    for index in range(len(steps.attempts)):
        mine = (steps.attempt == index) & ~steps.kept
        x, y = envelope(steps.step[mine], values[mine], share)
        xs += [x.astype(np.float64), np.array([np.nan])]
        ys += [y, np.array([np.nan])]
    if not xs or all(len(x) == 1 for x in xs):
        return
    figure.add_trace(
        go.Scatter(
            x=np.concatenate(xs),
            y=np.concatenate(ys),
            yaxis=axis,
            mode="lines+markers",
            name="rolled back",
            connectgaps=False,
            line={"color": ROLLED_BACK, "width": 1.4, "dash": "dot"},
            marker={"size": 5, "symbol": "x-thin", "line": {"width": 1.4, "color": ROLLED_BACK}},
            hovertemplate=f"step %{{x}}, rolled back: %{{y:.4g}}{unit}<extra></extra>",
        )
    )


def _restart_marks(restarts: Sequence[tuple[str, int]]) -> go.Scatter:
    return go.Scatter(
        x=[step for _, step in restarts],
        y=[1] * len(restarts),
        yaxis="y3",
        mode="markers",
        name="restart",
        hovertext=[f"attempt {name} goes on with step {step}" for name, step in restarts],
        hoverinfo="text",
        cliponaxis=False,
        marker={"symbol": "triangle-down", "size": 9, "color": SOFT},
    )


def _uneven(values: Floats) -> bool:
    return bool(len(values)) and float(values.max()) > UNEVEN * max(float(np.median(values)), 1e-9)


def _around(step: Integers) -> list[float]:
    if not len(step):
        return [0.0, 1.0]
    room = max(0.5, 0.01 * float(step.max() - step.min()))
    return [float(step.min()) - room, float(step.max()) + room]


def _says(steps: Steps) -> str:
    if not len(steps.step):
        return "No step was finished."
    lost = int((~steps.kept).sum())
    loss = steps.loss[steps.kept]
    finite = loss[np.isfinite(loss)]
    words = (
        f"Steps in the final state: {int(steps.kept.sum()):,}; rolled back: {lost:,}; "
        f"restarts: {len(steps.attempts) - 1}. "
    )
    if len(finite):
        words += f"Loss from {finite[0]:.4g} to {finite[-1]:.4g}. "
    missing = int((~np.isfinite(loss)).sum())
    if missing and len(finite):
        words += f"Without a finite loss: {missing:,}. "
    return words + f"A step takes {spoken(float(np.median(steps.seconds)))} (median)."
