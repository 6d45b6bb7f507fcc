"""Faults are drawn at the fleet's rates, the same ones for a seed whatever the job does about them."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.failure_rates import FAILURE_RATES
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.simulate import Cure, Durations, Fleet, Policy, Tier, simulate
from holdfast.goodput.simulate.draws import DAY_S, draw
from tests.goodput.simulate.jobs import CURES, LOCAL, SHARED, durations

LAYERS = frozenset({IN_PROCESS, IN_JOB, NODE})
FLEET = Fleet(nodes=30, spares=10, per_node_day={"node_loss": 0.3, "hang": 0.1}, per_job_day={"exception": 4.0})


def test_each_kind_comes_at_its_rate_and_gaps_are_exponential() -> None:
    count = 40_000
    strikes = list(islice(draw(FLEET, np.random.default_rng(1)), count))
    per_day = {"node_loss": 12.0, "hang": 4.0, "exception": 4.0}  # spares fail like the others
    days = strikes[-1].at / DAY_S
    assert days == pytest.approx(count / 20, rel=0.02)
    seen = Counter(one.kind for one in strikes)
    assert {kind: seen[kind] / days for kind in per_day} == pytest.approx(per_day, rel=0.04)
    gaps = np.diff([0.0, *(one.at for one in strikes)])
    assert gaps.min() > 0
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.03)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0.0, abs=0.02)


def test_nodes_are_hit_alike_and_the_job_s_own_faults_hit_none() -> None:
    strikes = list(islice(draw(FLEET, np.random.default_rng(2)), 40_000))
    hits = Counter(one.node for one in strikes if one.kind != "exception")
    assert set(hits) == set(range(40))
    assert max(hits.values()) / min(hits.values()) < 1.4
    assert {one.node for one in strikes if one.kind == "exception"} == {-1}


def test_without_rates_nothing_ever_fails() -> None:
    assert list(draw(Fleet(nodes=8), np.random.default_rng(0))) == []
    assert simulate(durations(), Fleet(nodes=8), Policy(intervals={"shared": 10}), days=1).interruptions == ()


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    policy = Policy(intervals={"shared": 30}, layers=LAYERS)
    runs = [simulate(durations(), FLEET, policy, seed=seed, days=5) for seed in (7, 7, 8)]
    assert runs[0].spans[-1] == runs[1].spans[-1] and runs[0].interruptions == runs[1].interruptions
    assert runs[0].interruptions != runs[2].interruptions


def test_faults_do_not_move_when_the_policy_or_the_repairs_change() -> None:
    """So that two policies are compared under the same faults."""
    few = Fleet(nodes=30, spares=10, per_node_day={"node_loss": 0.02, "hang": 0.05}, repair_s=3600)
    slow = Fleet(nodes=30, spares=10, per_node_day={"node_loss": 0.02, "hang": 0.05}, repair_s=7200)
    policies = [Policy(intervals={"shared": every}) for every in (10, 30)]
    times = [
        [round(one.at_s, 6) for one in simulate(durations(), fleet, policy, seed=3, days=20).interruptions]
        for fleet in (few, slow)
        for policy in policies
    ]
    assert len(times[0]) > 20
    assert all(each == times[0] for each in times)


def test_a_preset_s_fleet_fails_as_often_as_the_preset_says_and_software_does_not_grow_with_it() -> None:
    rate = FAILURE_RATES["llama3-405b"]
    fleet, small = Fleet.of(rate, nodes=2048), Fleet.of(rate, nodes=16)
    assert sum(fleet.per_day(kind) for kind in fleet.kinds) * 54 == pytest.approx(419)
    assert fleet.per_day("bad_gpu") * 54 == pytest.approx(268)
    assert fleet.per_day("exception") == pytest.approx(small.per_day("exception"))
    assert fleet.per_day("bad_gpu") == pytest.approx(128 * small.per_day("bad_gpu"))
    assert Fleet.of(FAILURE_RATES["none"], nodes=4).kinds == ()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Durations, Fleet, Policy]:
    """Any job: short and long steps, saves that overlap, few spares, elastic or not, layers on or off."""
    seconds = st.floats(min_value=0, max_value=200)
    tiers: tuple[Tier, ...] = draw(st.sampled_from([(), (SHARED,), (LOCAL, SHARED)]))
    cures = {pair: Cure(detection_s=draw(seconds), restart_s=draw(seconds)) for pair in CURES}
    times = durations(
        step_s=draw(st.floats(min_value=0.05, max_value=100)), first_step_s=draw(seconds), tiers=tiers, cures=cures,
        data_stall_s=draw(st.sampled_from([0.0, 0.3])), init_s=draw(seconds), queue_s=draw(seconds),
    )  # fmt: skip
    kinds = ("exception", "hang", "node_loss", "planned")
    fleet = Fleet(
        nodes=draw(st.integers(2, 20)), spares=draw(st.integers(0, 3)),
        per_node_day={kind: draw(st.floats(min_value=0, max_value=10)) for kind in kinds},
        per_job_day={"exception": draw(st.floats(min_value=0, max_value=10))},
        repair_s=draw(st.floats(min_value=1, max_value=1e5)), repair_varies=draw(st.booleans()),
    )  # fmt: skip
    policy = Policy(
        intervals={tier.name: draw(st.integers(1, 50)) for tier in tiers},
        layers=frozenset(draw(st.sets(st.sampled_from(sorted(LAYERS))))),
        elastic=bool(tiers) and draw(st.booleans()),
    )
    return times, fleet, policy


@settings(max_examples=150, deadline=None)
@given(jobs(), st.integers(0, 2**32), st.one_of(st.none(), st.integers(1, 20_000)))
def test_whatever_the_job_every_second_is_in_one_bucket(
    job: tuple[Durations, Fleet, Policy], seed: int, steps: int | None
) -> None:
    result = simulate(*job, seed=seed, days=3, steps=steps)
    assert list(result.buckets) == list(BUCKETS)
    assert min(result.buckets.values()) > -1e-6
    assert sum(result.buckets.values()) == pytest.approx(result.wall_s, abs=1e-6)
    assert result.wall_s <= 3 * DAY_S + 1e-6
    assert [span.start for span in result.spans[1:]] == [span.end for span in result.spans[:-1]]
    assert result.complete or result.wall_s == pytest.approx(3 * DAY_S)
    if steps is not None:
        assert result.steps == steps or not result.complete
    assert all(one.lost_steps >= 0 for one in result.interruptions)
    executed = sum(span.steps for span in result.spans)
    lost = sum(one.lost_steps for one in result.interruptions)
    settled = all(one.recovered_s is not None for one in result.interruptions)
    assert not settled or result.steps == executed - lost, "each rolled-back step is lost once"
