"""What all charts have in common: their frame, their fonts, and how one becomes a part of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

from holdfast.report.palette import INK, LINE, SOFT

FONT = "system-ui, sans-serif"
PAPER = "rgba(0,0,0,0)"
AXIS = 68
"""Pixels that a time axis with its title needs below the rows, and the room above them."""
MOST_LABEL = 22
"""Characters of a label beside a bar; a longer one is cut, and whole in the table."""


@dataclass(frozen=True)
class Chart:
    """A drawn figure with its words. `key` is unique on the page."""

    key: str
    title: str
    says: str
    """What a person who does not see it would want to know, in a sentence or two."""
    figure: go.Figure
    height: int
    """Pixels."""

    def json(self) -> str:
        """Data and layout for plotly.js, safe inside a script element: no character of it can end one."""
        drawing = json.loads(self.figure.to_json())
        text = json.dumps({"data": drawing["data"], "layout": drawing["layout"]}, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Scale(NamedTuple):
    """A unit of time for an axis: how many seconds it has and what it is called."""

    seconds: float
    unit: str

    def __call__(self, seconds: float) -> float:
        return seconds / self.seconds


def scale_of(longest_s: float) -> Scale:
    """The unit in which numbers up to longest_s seconds are easy to read."""
    for limit, seconds, unit in ((600, 1, "s"), (3 * 3600, 60, "min"), (4 * 86400, 3600, "h")):
        if longest_s <= limit:
            return Scale(seconds, unit)
    return Scale(86400, "days")


def spoken(duration_s: float) -> str:
    """A duration with three digits and the unit that suits it: `9.8 ms`, `75.6 s`, `54 days`."""
    if duration_s < 0.1:
        return f"{1000 * duration_s:.3g} ms"
    scale = scale_of(duration_s)
    return f"{scale(duration_s):.3g} {scale.unit}"


def frame(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give a figure the common look. Legends are lists beside the chart."""
    figure.update_layout(
        template={},
        height=height,
        margin={"l": 8, "r": 14, "t": 8, "b": 8},
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        font={"family": FONT, "size": 12, "color": SOFT},
        hoverlabel={"font": {"family": FONT, "size": 12}, "align": "left"},
        hovermode="closest",
        showlegend=False,
        bargap=0.28,
        dragmode="zoom",
    )
    lines = {"gridcolor": LINE, "linecolor": LINE, "zerolinecolor": LINE, "automargin": True}
    figure.update_xaxes(**lines, showline=False, zeroline=False, ticklabelposition="outside", nticks=8)
    figure.update_yaxes(**lines, showgrid=False, zeroline=False, ticklen=4, tickcolor=PAPER)
    figure.update_layout(**layout)
    return figure


def axis_title(words: str) -> dict[str, Any]:
    """The title of an axis."""
    return {"text": words, "font": {"size": 12, "color": SOFT}, "standoff": 8}


def label(words: str, most: int = MOST_LABEL) -> str:
    """Text from anywhere for a place where plotly reads its own markup: shown as it is, cut if it is long."""
    return escape(words if len(words) <= most else words[: most - 1] + "…", quote=False)


def hints(lines: Sequence[str]) -> list[str]:
    """The same for what a pointer shows; nothing is cut."""
    return [escape(line, quote=False) for line in lines]


def row_keys(count: int) -> list[str]:
    """Categories of an axis whose labels may be equal. plotly takes one that looks like a number for a position."""
    return [f"row {index}" for index in range(count)]


def values_font(size: int = 12) -> dict[str, Any]:
    """The font of numbers beside bars."""
    return {"family": FONT, "size": size, "color": INK}
