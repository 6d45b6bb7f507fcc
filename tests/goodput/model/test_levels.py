"""Several tiers of checkpoints: one tier is Daly's formula, and the optimum is one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.goodput.model import MOST_PRESSURE, Level, OutsideModelError, Save, daly_efficiency, exact_s
from holdfast.goodput.model.levels import _efficiency, efficiency, optimal_intervals

MTBF = 6480.0
ONE = Level(interval_s=353.36, cost_s=10, failures_per_s=1 / MTBF, recoveries=((1.0, 300.0),))
FAST = Level(interval_s=100, cost_s=1, failures_per_s=0.8 / MTBF, recoveries=((1.0, 30.0),))
SHARED = Level(interval_s=800, cost_s=10, failures_per_s=0.2 / MTBF, recoveries=((1.0, 300.0),))


def test_one_tier_is_daly_s_formula() -> None:
    assert efficiency([ONE]).value == pytest.approx(daly_efficiency(353.36, 10, MTBF, 300), rel=1e-12)


def test_kinds_of_recovery_count_by_what_they_do_to_a_whole_recovery() -> None:
    mixed = replace(ONE, recoveries=((0.5, 0.0), (0.5, 600.0)))
    # A recovery of r seconds succeeds with probability exp(-r / mtbf), else it begins anew with another kind.
    undisturbed = (1 + math.exp(-600 / MTBF)) / 2
    alone = daly_efficiency(353.36, 10, MTBF)
    assert efficiency([mixed]).value == pytest.approx(alone * undisturbed, rel=1e-12)


def test_a_fast_tier_that_nothing_goes_back_to_only_costs_its_saves() -> None:
    idle = Level(interval_s=100, cost_s=1, failures_per_s=0.0)
    every = Level(interval_s=400, cost_s=10, failures_per_s=1 / MTBF, recoveries=((1.0, 300.0),))
    assert efficiency([idle, every]).value == pytest.approx(daly_efficiency(400, 14, MTBF, 300), rel=1e-9)


def test_two_tiers_of_which_the_shared_one_is_never_needed_are_the_fast_one_and_a_cost() -> None:
    fast = replace(FAST, failures_per_s=1 / MTBF)
    never = Level(interval_s=800, cost_s=1e-9, failures_per_s=0.0)
    assert efficiency([fast, never]).value == pytest.approx(daly_efficiency(100, 1, MTBF, 30), rel=1e-6)


def test_without_failures_only_saves_cost_time() -> None:
    calm = [replace(FAST, failures_per_s=0.0), replace(SHARED, failures_per_s=0.0)]
    assert efficiency(calm).value == pytest.approx(1 / (1 + 1 / 100 + 10 / 800))


def test_a_second_tier_for_four_of_five_failures_pays() -> None:
    alone = replace(SHARED, failures_per_s=1 / MTBF, interval_s=exact_s(10, MTBF))
    assert efficiency([FAST, SHARED]).value > efficiency([alone]).value + 0.02


def test_work_done_before_the_commit_is_lost_too() -> None:
    late = replace(ONE, lag_s=120.0)
    assert efficiency([late]).value / efficiency([ONE]).value == pytest.approx(math.exp(-120 / MTBF))


def test_saves_that_wait_for_one_another_have_no_estimate() -> None:
    found = efficiency([replace(ONE, lag_s=400.0)])
    assert not found.valid and "each would wait for the one before" in str(found)


def test_beyond_the_pressure_it_says_so_instead_of_a_number() -> None:
    hard = replace(ONE, recoveries=((1.0, 1800.0),))
    found = efficiency([hard])
    assert found.number is None
    assert f"trusted up to {MOST_PRESSURE:.0%}" in str(found)
    with pytest.raises(OutsideModelError, match="no estimate of share of time that is work"):
        _ = found.value


ABSURD = 1e6
"""Failures per second: exp of minus this, times any recovery, is 0 as a float."""


@pytest.mark.parametrize(
    "levels",
    [
        [replace(ONE, failures_per_s=ABSURD)],
        [replace(FAST, failures_per_s=ABSURD), SHARED],
        [FAST, replace(SHARED, failures_per_s=ABSURD)],
        [replace(FAST, failures_per_s=ABSURD), replace(SHARED, failures_per_s=ABSURD)],
        [replace(FAST, failures_per_s=ABSURD, recoveries=((1.0, 0.0),), lag_s=50.0), SHARED],
        [replace(one, failures_per_s=ABSURD, recoveries=((1.0, 0.0),)) for one in (FAST, SHARED)],
        [*(replace(one, failures_per_s=ABSURD) for one in (FAST, SHARED)), replace(SHARED, interval_s=8000)],
        # One try in 1e15 ends well: chances that only rounding tells from each other.
        [
            Level(interval_s=2.46, cost_s=6265.23, failures_per_s=0.00574, recoveries=((1.0, 228.0),)),
            Level(interval_s=2460.0, cost_s=0.014, failures_per_s=0.0),
        ],
        # So many stretches in a row have a chance that is a subnormal float.
        [replace(ONE, interval_s=1.0, failures_per_s=0.07), replace(ONE, interval_s=1000.0, failures_per_s=0.0)],
    ],
)
def test_failures_that_leave_no_recovery_a_chance_are_refused_and_divide_nothing_by_zero(levels: list[Level]) -> None:
    found = efficiency(levels)
    assert not found.valid and found.outside
    assert all("nan" not in reason and "inf" not in reason for reason in found.outside)


def test_the_refusal_names_the_failures_and_what_they_end() -> None:
    why = r"a failure every 1e-06 s leaves no recovery of 300 s a chance to end: it fails so much faster"
    with pytest.raises(OutsideModelError, match=why):
        optimal_intervals([replace(ONE, failures_per_s=ABSURD)])
    slow = [replace(FAST, failures_per_s=10.0), replace(SHARED, lag_s=100.0)]
    slow = [replace(level, recoveries=((1.0, 0.0),)) for level in slow]
    with pytest.raises(OutsideModelError, match="leaves no write of a checkpoint of 100 s"):
        optimal_intervals(slow)
    assert "leaves no interval between saves of 353 s a chance" in str(efficiency([replace(ONE, failures_per_s=0.06)]))
    assert "leaves no save of 1e+03 s a chance" in str(efficiency([replace(ONE, failures_per_s=0.03, cost_s=1000.0)]))
    assert "leaves no recovery of 1e+06 s a chance" in str(efficiency([replace(ONE, recoveries=((1.0, 1e6),))]))


def test_the_best_interval_of_one_tier_is_the_exact_one_but_never_shorter_than_its_background_write() -> None:
    assert optimal_intervals([ONE]) == (exact_s(10, MTBF),)
    assert optimal_intervals([replace(ONE, lag_s=500.0)]) == (500.0,)


def test_the_best_intervals_of_two_tiers_are_nested_and_none_near_them_is_better() -> None:
    first, second = optimal_intervals([FAST, SHARED])
    ratio = second / first
    assert ratio == pytest.approx(round(ratio))
    best = _efficiency([replace(FAST, interval_s=first), replace(SHARED, interval_s=second)])
    for factor in (0.7, 0.97, 1.03, 1.4):
        for count in (round(ratio) - 1, round(ratio), round(ratio) + 1):
            near = [replace(FAST, interval_s=first * factor), replace(SHARED, interval_s=first * factor * count)]
            assert _efficiency(near) < best
    assert first == pytest.approx(exact_s(1, MTBF / 0.8), rel=0.05)


def test_the_best_intervals_respect_every_tier_s_background_write() -> None:
    slow = replace(SHARED, lag_s=3000.0)
    first, second = optimal_intervals([FAST, slow])
    assert second >= 3000 * (1 - 1e-9)
    assert first < 200


@pytest.mark.parametrize(
    "levels, why",
    [
        ([], "no level"),
        ([FAST, replace(SHARED, interval_s=250.0)], "no multiple"),
        ([replace(ONE, interval_s=0.0)], "above 0"),
        ([replace(ONE, recoveries=((0.5, 1.0),))], "do not sum to 1"),
    ],
)
def test_levels_that_cannot_be_are_refused(levels: list[Level], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        efficiency(levels)


def test_a_tier_that_no_failure_needs_has_no_best_interval() -> None:
    with pytest.raises(ValueError, match="no interval is the best"):
        optimal_intervals([FAST, replace(SHARED, failures_per_s=0.0)])


def test_a_save_costs_what_blocks_and_what_slows_down_and_is_safe_only_when_written() -> None:
    save = Save(blocked_s=0.5, hidden_s=0.7, background_s=30.0)
    assert [save.cost_s, save.lag_s] == pytest.approx([1.2, 29.3])
    with pytest.raises(ValueError, match="below 0"):
        Save(blocked_s=-1)
    with pytest.raises(ValueError, match="slowed down for longer"):
        Save(blocked_s=0, hidden_s=2, background_s=1)
