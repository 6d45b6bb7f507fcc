"""The colours: one for everything that is drawn, readable on both pages, apart for colour-blind readers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from holdfast.goodput.failures import PARTS
from holdfast.goodput.ledger import BUCKETS
from holdfast.report.palette import BUCKET_COLOURS, PART_COLOURS, RUN_COLOURS, RUN_DASHES

PAPERS = {"light": "#ffffff", "dark": "#13161b"}
"""--paper of page.css."""
GRAPHICS = 3.0
"""Contrast that WCAG 2.1 (1.4.11) asks of graphics."""
ALIKE = {"compile", "queue", "degraded", "unattributed"}
"""Rare greys and the straggler's purple: named beside their bars, and close to another colour."""
EYES = {
    "normal": np.eye(3),
    "deuteranope": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "protanope": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
}
"""Linear RGB as each kind of eye sees it (Machado, Oliveira and Fernandes 2009, full severity)."""
APART = 9.5
"""Least distance in CIE Lab; 2.3 is just noticeable."""

Vector = npt.NDArray[np.float64]


def linear(colour: str) -> Vector:
    """Linear RGB, 0 to 1."""
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG, 1 to 21."""
    dark, light = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: Vector) -> Vector:
    """CIE Lab of linear RGB, white point D65."""
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(rgb, 0, 1) / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_bucket_and_every_part_of_a_restart_has_a_colour() -> None:
    assert set(BUCKET_COLOURS) == set(BUCKETS)
    assert set(PART_COLOURS) == set(PARTS)
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKETS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_colour_stands_out_from_the_page(paper: str) -> None:
    every = {**BUCKET_COLOURS, **PART_COLOURS, **{f"run {i}": colour for i, colour in enumerate(RUN_COLOURS)}}
    found = {name: contrast(colour, PAPERS[paper]) for name, colour in every.items()}
    assert {name: ratio for name, ratio in found.items() if ratio < GRAPHICS} == {}


@pytest.mark.parametrize("eye", EYES)
def test_no_two_colours_of_a_chart_look_alike_to_any_eye(eye: str) -> None:
    seen = {name: lab(EYES[eye] @ linear(c)) for name, c in BUCKET_COLOURS.items() if name not in ALIKE}
    close = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert {pair: distance for pair, distance in close.items() if distance < APART} == {}


def test_runs_that_share_a_colour_differ_in_their_dashes_too() -> None:
    assert len(RUN_COLOURS) == len(RUN_DASHES) == len(set(RUN_COLOURS))
