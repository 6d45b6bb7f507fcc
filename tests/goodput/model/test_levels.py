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
