"""What cannot be simulated is refused: all problems at once, each with its key, its value, why, and what to write."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from holdfast.config.problems import ConfigError
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import Fleet, GivenFault, Policy, Tier, band, simulate
from tests.goodput.simulate.jobs import FOUR, LOCAL, SHARED, durations

TEN = Policy(intervals={"shared": 10})


@pytest.mark.parametrize(
    "times, fleet, policy, said",
    [
        (durations(step_s=0.0), FOUR, TEN, "durations.step_s = 0.0: a step takes time"),
        (durations(init_s=nan), FOUR, TEN, "durations.init_s = nan"),
        (
            durations(cures={}, tiers=(replace(SHARED, restore_s=-1),)),
            FOUR,
            TEN,
            "durations.tiers.shared.restore_s = -1",
        ),
        (durations(tiers=(replace(LOCAL, recoverable={"hang": 2.0}), SHARED)), FOUR, TEN, "it is a probability"),
        (durations(tiers=(SHARED, LOCAL)), FOUR, TEN, "durations.tiers.local.recoverable"),
        (durations(), Fleet(nodes=0), TEN, "fleet.nodes = 0"),
        (durations(), Fleet(nodes=1, spares=-1), TEN, "fleet.spares = -1"),
        (durations(), Fleet(nodes=1, repair_s=0), TEN, "fleet.repair_s = 0"),
        (
            durations(),
            Fleet(nodes=1, per_node_day={"gremlin": 1}),
            TEN,
            "there is no such kind of fault. Use one of excep",
        ),
        (durations(), Fleet(nodes=1, per_job_day={"hang": -1}), TEN, "fleet.per_job_day.hang = -1"),
        (durations(), FOUR, Policy(intervals={"tape": 5}), "policy.intervals.tape = 5: there is no such tier"),
        (durations(), FOUR, Policy(intervals={"shared": 0}), "policy.intervals.shared = 0"),
        (durations(tiers=(LOCAL, SHARED)), FOUR, Policy(intervals={"local": 5}), "no checkpoint outlives"),
        (durations(), FOUR, Policy(layers=frozenset({"magic"})), "policy.layers = 'magic'"),
        (durations(), FOUR, Policy(elastic=True, min_nodes=5), "policy.min_nodes = 5"),
        (durations(cures={}), FOUR, Policy(elastic=True), "restarts when a node returns"),
        (durations(), FOUR, Policy(elastic=True), "saves before it takes a node back"),
    ],
)
def test_what_cannot_be_simulated_is_refused(times: Any, fleet: Fleet, policy: Policy, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate(times, fleet, policy, days=1)
    assert said in str(refused.value)


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        simulate(durations(step_s=-1), Fleet(nodes=0), Policy(intervals={"tape": 5}), days=1)
    assert len(refused.value.problems) == 4


@pytest.mark.parametrize(
    "fault, said",
    [
        (GivenFault(kind="gremlin", at_s=1), "faults[0].kind = 'gremlin'"),
        (GivenFault(kind="hang"), "its time must be given once"),
        (GivenFault(kind="hang", at_s=1, at_step=1), "its time must be given once"),
        (GivenFault(kind="hang", at_s=-1), "faults[0].at_s = -1"),
        (GivenFault(kind="hang", at_step=0), "steps count from 1"),
        (GivenFault(kind="hang", at_s=1, node=4), "there are 4 nodes"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault: GivenFault, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate(durations(), FOUR, TEN, steps=10, faults=[fault])
    assert said in str(refused.value)


@pytest.mark.parametrize("end", [{}, {"days": 0.0}, {"days": float("inf")}, {"steps": 0}])
def test_a_simulation_without_an_end_is_refused(end: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs an end"):
        simulate(durations(), FOUR, TEN, **end)


def test_a_job_that_can_never_finish_is_given_up_with_the_step_it_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.goodput.simulate.engine.MOST_INTERRUPTIONS", 2000)
    hopeless = Fleet(nodes=4, per_job_day={"exception": 86_400.0})
    with pytest.raises(ConfigError, match=r"failed 2,000 times and came to step \d+"):
        simulate(durations(), hopeless, TEN, steps=100)


def test_a_tier_s_times_are_checked_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Tier(name="x", save=Save(blocked_s=-1), restore_s=0)


def test_a_band_holds_nine_of_ten() -> None:
    found = band(range(101))
    assert (found.low, found.median, found.high, found.mean, found.count) == (5, 50, 95, 50, 101)
    with pytest.raises(ValueError, match="at least one"):
        band([])
