"""The same ledger judges both: a simulated run, written as an event log, has the buckets that the simulation says."""

from __future__ import annotations

import random

import pytest

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.ledger import BUCKETS, Ledger, account
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import (
    Durations,
    Fleet,
    GivenFault,
    JobSpan,
    Policy,
    Simulation,
    Tier,
    simulate,
    timeline_of,
)
from tests.goodput.simulate.jobs import FOUR, LOCAL, SHARED, durations, run

ALL = frozenset({IN_PROCESS, IN_JOB, NODE})
KINDS = ("exception", "hang", "node_loss", "planned")
IN_THE_STEP = ("productive", "checkpoint_hidden", "checkpoint_blocked")


def judged(result: Simulation, times: Durations) -> Ledger:
    """The ledger of it, which covers the same time."""
    ledger = account(timeline_of(result, times))
    assert ledger.wall_s == pytest.approx(result.wall_s, abs=1e-9)
    return ledger


def agree(result: Simulation, times: Durations) -> Ledger:
    """Bucket by bucket, to a microsecond."""
    ledger = judged(result, times)
    assert dict(ledger.buckets) == pytest.approx(dict(result.buckets), abs=1e-6)
    assert ledger.steps == result.steps
    assert ledger.anomalies == ()
    return ledger


def drawn(seed: int, *, overlapping: bool) -> tuple[Simulation, Durations]:
    """A run of 300 steps with two tiers and up to 8 faults of all kinds; overlapping: some strike during recoveries."""
    draw = random.Random(seed)
    tiers = tuple(
        Tier(name=tier.name, save=Save(blocked_s=0.0, background_s=draw.uniform(1, 60)), restore_s=draw.uniform(1, 9),
             recoverable=tier.recoverable)
        for tier in (LOCAL, SHARED)
    )  # fmt: skip
    times = durations(tiers=tiers, data_stall_s=draw.choice([0.0, 0.25]))
    policy = Policy(intervals={"local": 7, "shared": 21}, layers=ALL)
    count = draw.randint(1, 8)
    if overlapping:
        moments = [draw.uniform(80, 3200) for _ in range(count)]
        moments += [at + draw.uniform(0.1, 80) for at in moments[:2]]
        faults = [GivenFault(kind=draw.choice(KINDS), at_s=at) for at in moments]
    else:
        # At a step's start a fault meets no recovery; the first one strikes inside a step.
        faults = [GivenFault(kind=draw.choice(KINDS), at_s=draw.uniform(80, 400))]
        faults += [GivenFault(kind=draw.choice(KINDS), at_step=draw.randint(60, 300)) for _ in range(count - 1)]
    fleet = Fleet(nodes=4, spares=2, repair_s=1500, repair_varies=False)
    return simulate(times, fleet, policy, seed=seed, steps=300, faults=faults), times


@pytest.mark.parametrize("seed", range(40))
def test_buckets_of_a_simulated_run_are_those_that_the_ledger_finds_in_its_log(seed: int) -> None:
    agree(*drawn(seed, overlapping=False))


@pytest.mark.parametrize("seed", range(40))
def test_faults_that_strike_recoveries_change_only_which_layer_is_named(seed: int) -> None:
    """The ledger names one layer for what several faults have caused; an unfinished first step is init to it."""
    result, times = drawn(seed, overlapping=True)
    ledger = judged(result, times)
    alike = ("productive", "queue", "other", "data_stall", "unattributed", "checkpoint_hidden", "checkpoint_blocked")
    assert {b: ledger.buckets[b] for b in alike} == pytest.approx({b: result.buckets[b] for b in alike}, abs=1e-6)
    assert ledger.steps == result.steps == 300


def test_the_drawn_runs_hold_what_they_are_to_test() -> None:
    apart = [drawn(seed, overlapping=False)[0] for seed in range(40)]
    seen = {bucket for result in apart for bucket, seconds in result.buckets.items() if seconds > 1}
    assert seen == {
        "productive", "lost_work", "checkpoint_wait", "restore", "init", "detection", "restart_in_process",
        "restart_in_job", "node_replacement", "queue", "other", "data_stall",
    }  # fmt: skip
    assert {one.tier for result in apart for one in result.interruptions} == {"local", "shared", None}
    assert {one.kind for result in apart for one in result.interruptions} == set(KINDS)
    together = [drawn(seed, overlapping=True)[0] for seed in range(40)]
    unnoticed = [one for result in together for one in result.interruptions if one.detected_s is None]
    assert unnoticed, "a fault struck while another one was not noticed yet"


def test_hidden_time_is_found_again_in_the_steps_that_it_slowed_down() -> None:
    slow = Tier(name="shared", save=Save(blocked_s=0.0, hidden_s=1.5, background_s=20), restore_s=8)
    times = durations(tiers=(slow,))
    result = simulate(times, FOUR, Policy(intervals={"shared": 10}), steps=100, faults=[])
    assert result.buckets["checkpoint_hidden"] == pytest.approx(13.5)
    agree(result, times)


def test_blocked_time_and_saves_are_found_again() -> None:
    result = run(GivenFault(kind="hang", at_step=35))
    ledger = judged(result, durations())
    assert ledger.buckets["checkpoint_blocked"] == pytest.approx(result.buckets["checkpoint_blocked"])
    # How the ledger splits what a step took longer into blocked and hidden is its own business; the sum is not.
    assert sum(ledger.buckets[b] for b in IN_THE_STEP) == pytest.approx(sum(result.buckets[b] for b in IN_THE_STEP))
    assert {b: s for b, s in ledger.buckets.items() if b not in IN_THE_STEP} == pytest.approx(
        {b: s for b, s in result.buckets.items() if b not in IN_THE_STEP}
    )
    assert ledger.saves.committed == tuple(range(10, 100, 10))


def test_recoveries_agree_on_layer_and_lost_steps() -> None:
    faults = [GivenFault(kind="exception", at_step=30), GivenFault(kind="hang", at_step=60)]
    policy = Policy(intervals={"shared": 10}, layers=ALL)
    result = run(*faults, policy=policy)
    ledger = judged(result, durations())
    assert [(r.fault.kind, r.layer, r.lost_steps) for r in ledger.recoveries] == [
        (one.kind, one.layer, one.lost_steps) for one in result.interruptions
    ]
    assert [r.detected_s for r in ledger.recoveries] == pytest.approx([o.detected_s for o in result.interruptions])


def test_a_person_s_restart_is_queue_and_start_up_in_both() -> None:
    nothing = Policy(intervals={"shared": 10}, layers=frozenset())
    quick = Tier(name="shared", save=Save(blocked_s=0.0, background_s=5), restore_s=8)
    times = durations(tiers=(quick,))
    agree(simulate(times, FOUR, nothing, steps=100, faults=[GivenFault(kind="hang", at_step=35)]), times)


def test_every_span_is_training_or_a_bucket_of_the_ledger() -> None:
    spans: list[JobSpan] = [span for seed in range(10) for span in drawn(seed, overlapping=True)[0].spans]
    assert {span.what for span in spans} <= {"train", *BUCKETS}


def test_a_run_too_long_for_events_is_refused_with_what_to_use_instead() -> None:
    times = durations(step_s=0.001)
    result = simulate(times, FOUR, Policy(), days=1, faults=[])
    with pytest.raises(ValueError, match="would not fit into memory"):
        timeline_of(result, times)
