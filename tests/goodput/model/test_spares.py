"""Spares: tails are those of exact arithmetic, also where they are tiny."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from holdfast.goodput.model import shortage, spares_for, unavailability


def exact_shortage(nodes: int, spares: int, away: Fraction) -> Fraction:
    """More than `spares` of all are out, by fractions."""
    count = nodes + spares
    return sum(
        (comb(count, k) * away**k * (1 - away) ** (count - k) for k in range(spares + 1, count + 1)), Fraction(0)
    )


@pytest.mark.parametrize(
    "nodes, spares, away",
    [
        (2, 0, (1, 3)),
        (16, 1, (1, 100)),
        (128, 4, (1, 1000)),
        (128, 30, (1, 1000)),
        (256, 60, (1, 2000)),
        (9, 9, (1, 2)),
    ],
)
def test_the_probability_of_a_shortage_is_exact_to_twelve_digits(
    nodes: int, spares: int, away: tuple[int, int]
) -> None:
    share = Fraction(*away)
    assert shortage(nodes, spares, float(share)) == pytest.approx(
        float(exact_shortage(nodes, spares, share)), rel=1e-12
    )


def test_a_tail_of_ten_to_the_minus_hundred_is_not_rounded_to_zero() -> None:
    tail = shortage(256, 80, 1 / 2000)
    assert 0 < tail < 1e-100
    assert tail == pytest.approx(float(exact_shortage(256, 80, Fraction(1, 2000))), rel=1e-9)


@pytest.mark.parametrize("limit", [0.2, 0.01, 1e-6, 1e-30])
def test_the_number_of_spares_is_the_least_that_keeps_the_limit(limit: float) -> None:
    found = spares_for(1024, 0.002, limit)
    assert shortage(1024, found, 0.002) <= limit < shortage(1024, found - 1, 0.002)


def test_nodes_that_never_fail_need_no_spares() -> None:
    assert spares_for(2048, unavailability(0.0, 3.0), 1e-9) == 0
    assert shortage(2048, 0, 0.0) == 0.0


def test_a_node_is_away_for_its_repairs_share_of_the_time() -> None:
    assert unavailability(0.01, 2.0) == pytest.approx(0.02 / 1.02)


@pytest.mark.parametrize("arguments", [(0, 1, 0.1), (1, -1, 0.1), (1, 1, 1.5)])
def test_a_pool_that_cannot_be_is_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="nodes must be at least 1"):
        shortage(*arguments)


def test_a_limit_that_no_pool_keeps_is_refused() -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        spares_for(10, 0.5, 0.0)
