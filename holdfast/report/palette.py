"""Colours of the report. One thing has one colour in every chart.

Hue names the family (green trains, red is lost, blue saves, yellow restarts, grey starts and waits). Within what keeps
a contrast of 3 to white and to near-black, so that both pages can use them, the colours were chosen by a search for
the largest distance between any two, as seen by normal, deuteranope and protanope eyes (tests/report/test_palette.py
has the limits). No chart says anything by colour alone: names stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

BUCKET_COLOURS: Mapping[str, str] = {
    "productive": "#4da171",
    "lost_work": "#b3391d",
    "checkpoint_blocked": "#2265ca",
    "checkpoint_hidden": "#149cdf",
    "checkpoint_wait": "#008ce2",
    "restore": "#715a9c",
    "data_stall": "#c47cb2",
    "init": "#818387",
    "compile": "#75808f",
    "detection": "#bc7326",
    "restart_in_process": "#be8b00",
    "restart_in_job": "#918e49",
    "node_replacement": "#8a5a45",
    "queue": "#8c939b",
    "degraded": "#a8557f",
    "other": "#5b6770",
    "unattributed": "#6d7075",
}

PART_COLOURS: Mapping[str, str] = {
    "noticed": BUCKET_COLOURS["detection"],
    "stopped": BUCKET_COLOURS["node_replacement"],
    "started": BUCKET_COLOURS["restart_in_process"],
    "imported": BUCKET_COLOURS["restart_in_job"],
    "group": BUCKET_COLOURS["checkpoint_hidden"],
    "model": BUCKET_COLOURS["checkpoint_blocked"],
    "restored": BUCKET_COLOURS["restore"],
    "first_step": BUCKET_COLOURS["productive"],
}
"""Parts of a restart; one that a bucket also measures has the bucket's colour."""

UNKNOWN_COLOUR = "#75808f"
"""Of a bucket or part that this file does not know yet."""

RUN_COLOURS = ("#2265ca", "#bc7326", "#4da171", "#c47cb2", "#8a5a45", "#149cdf", "#918e49", "#715a9c")
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
"""Line of each run where several share a chart; colours repeat after the last."""

FAULT = BUCKET_COLOURS["lost_work"]
COMMIT = BUCKET_COLOURS["checkpoint_blocked"]
KEPT = BUCKET_COLOURS["productive"]
ROLLED_BACK = BUCKET_COLOURS["lost_work"]

INK, SOFT, LINE, BAND = "#000001", "#000002", "#000003", "#000004"
ROLES: Mapping[str, str] = {INK: "--ink", SOFT: "--soft", LINE: "--line", BAND: "--band"}
"""Stand-ins for colours that differ between the light and the dark page: page.js puts the style sheet's in their place.
plotly takes colours only, so the stand-ins look like some."""


def bucket_colour(bucket: str) -> str:
    """Of a bucket of the ledger."""
    return BUCKET_COLOURS.get(bucket, UNKNOWN_COLOUR)


def part_colour(part: str) -> str:
    """Of a part of a restart."""
    return PART_COLOURS.get(part, UNKNOWN_COLOUR)
