"""The waterfall: from all of the wall time, through everything that took a part of it, to what trained."""

from __future__ import annotations

import plotly.graph_objects as go

from holdfast.goodput.ledger import BUCKETS, Ledger
from holdfast.goodput.report import seconds
from holdfast.report.chart import AXIS, Chart, axis_title, frame, scale_of, spoken, values_font
from holdfast.report.palette import BAND, INK, bucket_colour

ROW = 27
"""Pixels."""
ROOM = 0.6
"""Part of the width up to which a number fits to the right of its bar."""
ON_BAR = "#0c1116"
"""Text inside a coloured bar."""
WALL, TRAINED = "wall time", "productive"


def waterfall_chart(ledger: Ledger, key: str) -> Chart:
    """The chart. Buckets of no time are left out; the table has them."""
    scale = scale_of(ledger.wall_s)
    taken = [bucket for bucket in BUCKETS if bucket != TRAINED and ledger.buckets[bucket] > 0]
    names, bases, lengths, colours = [WALL], [0.0], [ledger.wall_s], [BAND]
    left = ledger.wall_s
    for bucket in taken:
        left -= ledger.buckets[bucket]
        names.append(bucket)
        bases.append(max(0.0, left))
        lengths.append(ledger.buckets[bucket])
        colours.append(bucket_colour(bucket))
    names.append(TRAINED)
    bases.append(0.0)
    lengths.append(ledger.buckets[TRAINED])
    colours.append(bucket_colour(TRAINED))
    shares = [length / ledger.wall_s if ledger.wall_s else 0.0 for length in lengths]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=names,
            base=[scale(base) for base in bases],
            x=[scale(length) for length in lengths],
            marker={"color": colours, "line": {"width": 1, "color": colours}},
            hovertext=[f"{n}: {seconds(s)} s, {share:.2%}" for n, s, share in zip(names, lengths, shares, strict=True)],
            hoverinfo="text",
        )
    )
    for name, base, length, share, colour in zip(names, bases, lengths, shares, colours, strict=True):
        _value(figure, name, (scale(base), scale(base + length)), share, scale(ledger.wall_s), colour)
    height = len(names) * ROW + AXIS
    frame(figure, height)
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=names[::-1],
        fixedrange=True,
        range=[-0.5, len(names) - 0.5],
    )
    figure.update_xaxes(
        range=[0, scale(ledger.wall_s) * 1.005], title=axis_title(f"job time ({scale.unit})"), fixedrange=True
    )
    worst = sorted(taken, key=lambda bucket: -ledger.buckets[bucket])[:3]
    says = f"Of {spoken(ledger.wall_s)}, {shares[-1]:.1%} trained. " + (
        "Most of the rest: " + ", ".join(f"{b} {ledger.buckets[b] / ledger.wall_s:.1%}" for b in worst) + "."
        if worst
        else "Nothing else took time."
    )
    return Chart(key, "Where the wall time went", says, figure, height)


def _value(figure: go.Figure, name: str, bar: tuple[float, float], share: float, wall: float, bar_colour: str) -> None:
    """The share, beside its bar on the side that has room; inside the bars that fill their row."""
    words = f"{share:.1%}" if share >= 0.0005 or share == 0 else "< 0.1%"
    begin, end = bar
    place = {"x": end, "xanchor": "left", "xshift": 5}
    colour, paper = INK, None
    if begin <= 0 and end > ROOM * wall:
        place = {"x": end, "xanchor": "right", "xshift": -6}
        colour, paper = (INK if name == WALL else ON_BAR), bar_colour
    elif end >= ROOM * wall:
        place = {"x": begin, "xanchor": "right", "xshift": -5}
    figure.add_annotation(
        y=name,
        text=words,
        showarrow=False,
        bgcolor=paper,
        borderpad=0,
        font={**values_font(), "color": colour},
        **place,
    )
