"""The simulation and the closed form, made apart from one another, agree inside the envelope."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from holdfast.goodput.attempts import IN_JOB, NODE
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import Cure, Durations, Fleet, Policy, Tier, best_intervals, expected_goodput, simulate
from tests.goodput.simulate.agreement import case, spread_faults
from tests.goodput.simulate.jobs import LOCAL, SHARED, durations

SETTINGS = 200
COSTLY = Tier(name="shared", save=Save(blocked_s=20, background_s=25), restore_s=8)
FAULTS = 400
"""Per setting, stratified: the error of the mean is then about 0.2 % (asserted below)."""


def error(index: int, count: int = FAULTS, seed: int = 0) -> float:
    """Simulated goodput of setting `index` over the expected one, less 1."""
    one = case(random.Random(f"setting {index}"))
    faults, days = spread_faults(one, count, random.Random(f"faults {index} {seed}"))
    result = simulate(one.durations, one.fleet, one.policy, days=days, faults=faults, seed=seed)
    return result.goodput / one.expected - 1


def test_simulation_and_closed_form_agree_within_1_percent_in_200_random_settings() -> None:
    errors = [error(index) for index in range(SETTINGS)]
    assert max(map(abs, errors)) < 0.01
    assert abs(fmean(errors)) < 0.0005, "and not on one side"


def test_the_statistical_error_of_that_comparison_is_far_below_1_percent() -> None:
    differences = [error(index, seed=1) - error(index, seed=2) for index in range(15)]
    assert (fmean(d * d for d in differences) / 2) ** 0.5 < 0.002


def test_the_settings_differ_and_reach_the_edge_of_the_envelope() -> None:
    cases = [case(random.Random(f"setting {index}")) for index in range(SETTINGS)]
    assert 60 < sum(len(one.policy.intervals) == 2 for one in cases) < 140
    assert min(one.expected for one in cases) < 0.75
    assert max(one.expected for one in cases) > 0.98


def test_a_tier_that_outlives_some_faults_is_expected_to_by_its_chance() -> None:
    near = Tier(name="local", save=Save(blocked_s=0.5), restore_s=5, recoverable={"hang": 0.6})
    shared = Tier(name="shared", save=Save(blocked_s=5), restore_s=60)
    times = Durations(step_s=5.0, tiers=(near, shared), cures={("hang", IN_JOB): Cure(detection_s=60, restart_s=30)})
    fleet, policy = Fleet(nodes=4, per_job_day={"hang": 12.0}), Policy(intervals={"local": 20, "shared": 160})
    found = fmean(simulate(times, fleet, policy, seed=seed, days=200).goodput for seed in range(4))
    assert found == pytest.approx(expected_goodput(times, fleet, policy).value, rel=0.005)


def test_a_slow_shared_save_that_restarts_keep_interrupting_is_expected_to_be_lost() -> None:
    """Restarts from the local tier leave the work alone, not the write under way: one in three is never committed."""
    near = Tier(name="local", save=Save(blocked_s=0.05), restore_s=1, recoverable={"node_loss": 0.0})
    shared = Tier(name="shared", save=Save(blocked_s=0.05, background_s=900), restore_s=5)
    cures = {(kind, IN_JOB): Cure(detection_s=1, restart_s=5) for kind in ("hang", "node_loss")}
    times = Durations(step_s=5.0, tiers=(near, shared), cures=cures)
    fleet = Fleet(nodes=4, spares=9, per_job_day={"hang": 40.0, "node_loss": 4.0}, repair_s=60)
    policy = Policy(intervals={"local": 6, "shared": 240})
    found = fmean(simulate(times, fleet, policy, seed=seed, days=200).goodput for seed in range(4))
    expected = expected_goodput(times, fleet, policy).value
    assert found == pytest.approx(expected, rel=0.003)
    assert found < expected_goodput(times, replace(fleet, per_job_day={"node_loss": 4.0}), policy).value - 0.02


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_waiting_for_nodes_is_that_of_a_binomial_pool(spares: int) -> None:
    times = Durations(
        step_s=10.0,
        tiers=(Tier(name="shared", save=Save(blocked_s=1.0), restore_s=10.0),),
        cures={
            ("node_loss", IN_JOB): Cure(detection_s=5, restart_s=20),
            ("node_loss", NODE): Cure(detection_s=5, restart_s=60),
        },
    )
    # A node is away for 1 % of the time: of 20 + 3, more than 3 rarely, more than none every fifth time.
    fleet = Fleet(
        nodes=20, spares=spares, per_node_day={"node_loss": 1.0}, per_job_day={"exception": 1e-9}, repair_s=864
    )
    policy = Policy(intervals={"shared": 10})
    expected = expected_goodput(times, fleet, policy).value
    found = [simulate(times, fleet, policy, seed=seed, days=60).goodput for seed in range(8)]
    assert fmean(found) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("tiers", [(SHARED,), (LOCAL, COSTLY)], ids=["one tier", "two tiers"])
def test_no_intervals_near_the_best_ones_are_better(tiers: tuple[Tier, ...]) -> None:
    times = durations(tiers=tiers, step_s=1.0)
    fleet = Fleet(nodes=500, spares=50, per_node_day={"node_loss": 0.004, "hang": 0.04}, repair_s=3600)
    best = best_intervals(times, fleet, Policy(intervals={tier.name: 1 for tier in tiers}))
    there = expected_goodput(times, fleet, Policy(intervals=best)).value
    first, ratio = min(best.values()), max(best.values()) // min(best.values())
    for steps in (first - 5, first + 5):
        for count in (ratio,) if len(tiers) == 1 else (ratio - 1, ratio, ratio + 1):
            near = dict(zip(best, (steps, steps * count), strict=False))
            assert expected_goodput(times, fleet, Policy(intervals=near)).value < there


def test_the_best_interval_of_a_slow_write_is_the_write_itself() -> None:
    slow = Tier(name="shared", save=Save(blocked_s=0.01, background_s=301.0), restore_s=8)
    fleet = Fleet(nodes=500, per_job_day={"hang": 10.0})
    assert best_intervals(durations(tiers=(slow,)), fleet, Policy(intervals={"shared": 1})) == {"shared": 31}


def test_where_the_closed_form_has_no_number_it_says_why() -> None:
    policy = Policy(intervals={"shared": 10})
    big = Fleet(nodes=1024, per_node_day={"hang": 0.0065})
    assert expected_goodput(durations(), big, policy).valid
    for changed, why in (
        (expected_goodput(durations(), Fleet(nodes=64, per_node_day={"hang": 0.0065}), policy), "hardware alone"),
        (expected_goodput(durations(), big, Policy()), "nothing is saved"),
        (expected_goodput(durations(), big, Policy(intervals={"shared": 10}, elastic=True)), "depends on its past"),
        (expected_goodput(durations(), big, Policy(intervals={"shared": 1})), "wait for the one before"),
        (expected_goodput(durations(), Fleet(nodes=1024, per_node_day={"hang": 1.0}), policy), "trusted up to 25%"),
    ):
        assert changed.number is None
        assert why in str(changed)
