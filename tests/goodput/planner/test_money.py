"""Dollars, against hand-computed values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.goodput.planner.money import cost_of, price_of_work, saved_gpu_hours, saved_usd
from holdfast.goodput.planner.setting import Setting, configured
from tests.goodput.planner.jobs import setting


def cluster(*overrides: str) -> Setting:
    return setting("llama3-8b-p5x8", "cost.node_hourly_usd=10", *overrides)


def test_lost_hours_are_those_of_training_nodes_and_spares_are_paid_apart() -> None:
    one = cluster("recovery.spares=2")
    cost = cost_of(one, configured(one), goodput=0.75)
    assert cost.lost_gpu_hours == pytest.approx(0.25 * 8 * 8 * 730)
    assert cost.lost_usd == pytest.approx(0.25 * 8 * 730 * 10)
    assert cost.spares_usd == pytest.approx(2 * 730 * 10)
    assert cost.storage_usd == pytest.approx(4800 * 0.6)


def test_the_price_of_work_is_everything_that_is_paid_for_per_useful_time() -> None:
    one = cluster("recovery.spares=2")
    assert price_of_work(one, configured(one), 0.5) == pytest.approx((10 * 10 * 730 + 4800 * 0.6) / 0.5)


def test_a_change_saves_what_the_same_work_costs_less() -> None:
    one = cluster("recovery.spares=0")
    base = configured(one)
    monthly = 8 * 10 * 730 + 4800 * 0.6
    assert saved_usd(one, (base, 0.8), (base, 0.9)) == pytest.approx(monthly - 0.8 * monthly / 0.9)


def test_hours_saved_are_those_of_the_same_work_and_count_spares() -> None:
    one = cluster("recovery.spares=0")
    base = configured(one)
    spared = replace(base, spares=2)
    assert saved_gpu_hours(one, (base, 0.8), (base, 0.9)) == pytest.approx(8 * 8 * 730 * (1 - 0.8 / 0.9))
    assert saved_gpu_hours(one, (base, 0.8), (spared, 0.9)) == pytest.approx(8 * 730 * (8 - 10 * 0.8 / 0.9))
    assert saved_gpu_hours(one, (base, 0.9), (spared, 0.9)) == pytest.approx(-2 * 8 * 730)
    assert saved_gpu_hours(one, (base, 0.0), (base, 0.9)) is None


def test_this_machine_has_no_price() -> None:
    one = setting("cpu-demo")
    base = configured(one)
    assert cost_of(one, base, 0.9).lost_usd is None
    assert saved_usd(one, (base, 0.8), (base, 0.9)) is None
    assert price_of_work(one, base, 0.5) == pytest.approx(3 / 0.5)
