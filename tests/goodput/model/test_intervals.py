"""Checkpoint intervals: the known vectors, each recomputed with 60 digits and by other means than the code's."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.goodput.model import daly_efficiency, daly_first_s, daly_higher_s, daly_wall_s, exact_s, young_s

HOUR = 3600
VECTORS = [
    # cost, hours between failures; printed: Young, Daly first, higher, exact, efficiency at restart 0 and 300 s
    ("1", "1.8", "113.84", "112.84", "113.18", "113.18", "0.98253", "0.93808"),
    ("10", "1.8", "360.00", "350.00", "353.36", "353.36", "0.94547", "0.90269"),
    ("60", "1.8", "881.82", "821.82", "842.27", "842.28", "0.87002", "0.83066"),
    ("300", "1.8", "1971.80", "1671.80", "1776.87", "1777.08", "0.72576", "0.69292"),
    ("6.3", "3.09", "374.38", "368.08", "370.19", "370.19", "0.96672", "0.94100"),
    ("148.8", "3.09", "1819.48", "1670.68", "1721.63", "1721.66", "0.84523", "0.82274"),
    ("10", "7.9", "754.19", "744.19", "747.54", "747.54", "0.97372", "0.96350"),
    ("300", "24", "7200.00", "6900.00", "7001.39", "7001.40", "0.91897", "0.91578"),
    ("60", "0.23", "315.21", "255.21", "276.48", "276.55", "0.66600", "0.46358"),
    ("1800", "1", "3600.00", "1800.00", "2500.00", "2513.85", "0.30171", "0.27759"),
]
"""Daly 2006 (FGCS 22) and Young 1974, computed for these cases and printed to these digits in our research."""
REL = 1e-6


def decimal_wall(t: Decimal, d: Decimal, m: Decimal, r: Decimal) -> Decimal:
    """Daly's expected wall time per second of work, with the digits of the context."""
    return m * (r / m).exp() * (((t + d) / m).exp() - 1) / t


def golden_optimum(d: Decimal, m: Decimal) -> Decimal:
    """The best interval by golden-section search over the wall time itself; no formula for it is used."""
    ratio = (Decimal(5).sqrt() - 1) / 2
    low, high = Decimal("1e-6") * m, m
    while high - low > Decimal("1e-14") * m:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if decimal_wall(left, d, m, Decimal(0)) < decimal_wall(right, d, m, Decimal(0)):
            high = right
        else:
            low = left
    return (low + high) / 2


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: f"{row[0]}s-{row[1]}h")
def test_vector_of_daly(row: tuple[str, ...]) -> None:
    cost, hours, *printed = row
    with localcontext() as context:
        context.prec = 60
        d, m = Decimal(cost), Decimal(hours) * HOUR
        young = (2 * d * m).sqrt()
        half = d / (2 * m)
        higher = young * (1 + half.sqrt() / 3 + half / 9) - d
        best = golden_optimum(d, m)
        efficiencies = [1 / decimal_wall(best, d, m, Decimal(r)) for r in (0, 300)]
    precise = [float(x) for x in (young, young - d, higher, best, *efficiencies)]
    c, mtbf = float(cost), float(m)
    exact = exact_s(c, mtbf)
    ours = [
        young_s(c, mtbf), daly_first_s(c, mtbf), daly_higher_s(c, mtbf), exact,
        daly_efficiency(exact, c, mtbf), daly_efficiency(exact, c, mtbf, 300),
    ]  # fmt: skip
    assert ours == pytest.approx(precise, rel=REL)
    assert [f"{x:.2f}" for x in ours[:4]] + [f"{x:.5f}" for x in ours[4:]] == printed


@given(
    st.floats(min_value=-12, max_value=1.5, allow_nan=False), st.floats(min_value=1e2, max_value=1e7, allow_nan=False)
)
def test_the_exact_interval_solves_its_equation_from_tiny_to_huge_costs(exponent: float, mtbf: float) -> None:
    cost = mtbf * 10**exponent
    # Optimal where ln(1 - y) + y + cost/mtbf = 0 with y = interval / mtbf; solved here by Newton's method in decimals.
    with localcontext() as context:
        context.prec = 60
        x = Decimal(cost) / Decimal(mtbf)
        y = min((2 * x).sqrt(), Decimal("0.5"))
        for _ in range(200):
            step = ((1 - y).ln() + y + x) * (1 - y) / y
            y = min(y + step, (1 + y) / 2)
            if abs(step) < Decimal("1e-40"):
                break
    assert exact_s(cost, mtbf) == pytest.approx(float(y) * mtbf, rel=1e-8)


@pytest.mark.parametrize("cost, mtbf", [(10, 6480), (300, 6480), (1800, 3600)])
def test_no_interval_is_better_than_the_exact_one_whatever_the_restart_takes(cost: float, mtbf: float) -> None:
    best = exact_s(cost, mtbf)
    for restart in (0.0, 300.0):
        there = daly_wall_s(1.0, best, cost, mtbf, restart)
        assert all(daly_wall_s(1.0, best * factor, cost, mtbf, restart) > there for factor in (0.5, 0.99, 1.01, 2))


def test_daly_s_higher_order_is_the_time_between_failures_once_a_save_costs_twice_that() -> None:
    assert daly_higher_s(200, 100) == 100
    assert daly_higher_s(199, 100) != 100


def test_without_failures_the_interval_is_endless_and_only_saves_cost_time() -> None:
    assert young_s(10, math.inf) == daly_higher_s(10, math.inf) == exact_s(10, math.inf) == math.inf
    assert daly_wall_s(100, 50, 10, math.inf) == pytest.approx(120)


def test_a_job_that_fails_long_before_its_first_save_never_ends() -> None:
    assert daly_wall_s(1.0, 1e6, 1.0, 1.0) == math.inf
    assert daly_efficiency(1e6, 1.0, 1.0) == 0.0


@pytest.mark.parametrize("cost, mtbf, wrong", [(-1, 10, "cost_s"), (1, 0, "mtbf_s"), (math.nan, 10, "cost_s")])
def test_times_that_cannot_be_are_refused_by_name(cost: float, mtbf: float, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        exact_s(cost, mtbf)
