"""Cases that can be computed by hand. Steps take 10 s; saves every 10 steps block for 2 s and commit 25 s later."""

from __future__ import annotations

import pytest

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import PERSON, Fleet, GivenFault, Policy, Tier, simulate
from tests.goodput.simulate.jobs import FOUR, LOCAL, SHARED, durations, nonzero, run

START = 57.0
"""Queue and init."""
EVERYWHERE = {"queue": 7, "init": 50, "other": 3}
QUIET = EVERYWHERE | {"productive": 1000, "checkpoint_blocked": 18, "checkpoint_wait": 27}
"""Nine saves on the way, and the last one is waited for."""


def test_an_undisturbed_run_is_steps_saves_and_a_last_commit() -> None:
    result = run()
    assert nonzero(result) == QUIET
    assert (result.complete, result.steps, result.interruptions) == (True, 100, ())
    assert result.goodput == pytest.approx(1000 / 1105)


def test_a_fault_costs_the_work_since_the_last_commit_and_the_way_back() -> None:
    # Step 30 ends at 300 + 2 saves x 2 s; its save is committed 27 s later. The fault strikes in step 34.
    at = START + 304 + 2 + 30 + 5
    result = run(GivenFault(kind="hang", at_s=at))
    lost = 4 * 10 - 5 + 2
    assert nonzero(result) == QUIET | {"lost_work": lost, "detection": 60, "restart_in_job": 20, "restore": 8} | {
        "checkpoint_blocked": 16  # the step that waited for it was rolled back and paid as lost
    }
    (one,) = result.interruptions
    assert (one.lost_steps, one.tier, one.layer, one.detected_s, one.recovered_s) == (3, "shared", IN_JOB, 60, 88)


@pytest.mark.parametrize("seconds_after, lost_steps", [(26.9, 12), (27.1, 2)])
def test_a_fault_before_the_commit_loses_the_save(seconds_after: float, lost_steps: int) -> None:
    result = run(GivenFault(kind="hang", at_s=START + 304 + seconds_after))
    assert result.interruptions[0].lost_steps == lost_steps


def test_a_fault_before_the_first_commit_begins_at_step_0_and_restores_nothing() -> None:
    result = run(GivenFault(kind="hang", at_s=START + 100))
    assert result.interruptions[0].tier is None
    assert "restore" not in nonzero(result)
    assert nonzero(result)["lost_work"] == 100


def test_a_fault_at_a_step_strikes_at_its_start_and_once() -> None:
    result = run(GivenFault(kind="hang", at_step=35))
    (one,) = result.interruptions
    assert one.at_s == pytest.approx(START + 304 + 2 + 40)
    assert (one.lost_steps, result.steps) == (4, 100)
    first = run(GivenFault(kind="hang", at_step=1))
    assert first.interruptions[0].at_s == START


def test_the_first_layer_that_is_on_and_cures_the_kind_acts() -> None:
    fault = GivenFault(kind="exception", at_step=35)
    all_layers = Policy(intervals={"shared": 10}, layers=frozenset({IN_PROCESS, IN_JOB, NODE}))
    assert nonzero(run(fault, policy=all_layers))["restart_in_process"] == 4
    assert nonzero(run(fault))["restart_in_job"] == 20


def test_what_no_layer_cures_waits_for_a_person_and_starts_anew() -> None:
    nothing = Policy(intervals={"shared": 10}, layers=frozenset())
    result = run(GivenFault(kind="exception", at_step=35), policy=nothing)
    found = nonzero(result)
    assert (found["queue"], found["init"]) == (7 + 3600 + 7, 100)
    assert result.interruptions[0].layer == PERSON


def test_a_fault_during_a_recovery_begins_it_anew_and_the_work_is_lost_once() -> None:
    at = START + 304 + 2 + 40
    twice = run(GivenFault(kind="hang", at_step=35), GivenFault(kind="hang", at_s=at + 60 + 12))
    found = nonzero(twice)
    assert (found["detection"], found["restart_in_job"], found["restore"]) == (120, 12 + 20, 8)
    first, second = twice.interruptions
    assert (first.lost_steps, second.lost_steps) == (4, 0)
    assert first.recovered_s == pytest.approx(72 + 88) and second.recovered_s == pytest.approx(88)


def test_a_local_tier_shortens_the_way_back_unless_it_went_with_the_node() -> None:
    both = Policy(intervals={"local": 2, "shared": 10})
    fleet, tiers = Fleet(nodes=4, spares=1), (LOCAL, SHARED)
    kept = run(GivenFault(kind="hang", at_step=38), fleet=fleet, tiers=tiers, policy=both).interruptions[0]
    gone = run(GivenFault(kind="node_loss", at_step=38), fleet=fleet, tiers=tiers, policy=both).interruptions[0]
    assert (kept.tier, kept.lost_steps) == ("local", 1)
    assert (gone.tier, gone.lost_steps) == ("shared", 7)


def test_work_that_the_shared_tier_throws_back_beyond_an_earlier_recovery_is_lost_with_it() -> None:
    both = Policy(intervals={"local": 2, "shared": 20})
    faults = [GivenFault(kind="hang", at_step=38), GivenFault(kind="node_loss", at_step=39)]
    result = run(*faults, fleet=Fleet(nodes=4, spares=1), tiers=(LOCAL, SHARED), policy=both)
    assert [one.lost_steps for one in result.interruptions] == [1, 18]
    assert result.steps == 100
    # Steps 21 to 37, then 37 and 38 again, with the waits of local saves 22 to 36 and, in step 21, of both tiers.
    assert nonzero(result)["lost_work"] == 17 * 10 + 3 + 8 + 2 * 10


def test_a_spare_takes_the_place_of_a_lost_node_and_without_one_the_job_waits_for_the_repair() -> None:
    fault = GivenFault(kind="node_loss", at_step=35)
    swapped = nonzero(run(fault, fleet=Fleet(nodes=4, spares=1, repair_s=1000, repair_varies=False)))
    waited = nonzero(run(fault))
    assert (swapped["restart_in_job"], swapped.get("node_replacement")) == (30, None)
    # Repaired 1,000 s after the loss, of which 5 went into noticing it; then the higher layer restarts everything.
    assert (waited["node_replacement"], waited.get("restart_in_job")) == (995 + 100, None)


def test_a_node_that_is_repaired_becomes_a_spare() -> None:
    faults = [GivenFault(kind="node_loss", at_step=35), GivenFault(kind="node_loss", at_step=600)]
    fleet = Fleet(nodes=4, spares=1, repair_s=1000, repair_varies=False)
    assert [one.layer for one in run(*faults, fleet=fleet, steps=700).interruptions] == [IN_JOB, IN_JOB]


def test_a_spare_that_fails_interrupts_nobody_and_is_missing_later() -> None:
    faults = [GivenFault(kind="node_loss", at_s=300, node=4), GivenFault(kind="node_loss", at_s=500, node=0)]
    result = run(*faults, fleet=Fleet(nodes=4, spares=1, repair_s=1000, repair_varies=False))
    assert [(one.node, one.layer) for one in result.interruptions] == [(0, NODE)]


def test_an_elastic_job_goes_on_smaller_and_grows_when_the_node_is_back() -> None:
    elastic = Policy(intervals={"shared": 10}, elastic=True, min_nodes=2)
    result = run(GivenFault(kind="node_loss", at_step=35), policy=elastic, steps=200)
    found = nonzero(result)
    # Steps take 10 x 4/3 s meanwhile: a quarter of the time is degraded.
    assert found["degraded"] > 0
    smaller = [span for span in result.spans if span.what == "train"][1]
    assert found["degraded"] == pytest.approx(smaller.steps * 10 / 3)
    assert found["restart_in_job"] == 30 + 15
    assert "node_replacement" not in found
    assert len(result.interruptions) == 1, "growing is no interruption"
    assert found["productive"] == 2000
    assert found["lost_work"] == 40 + 2, "and loses nothing"


def test_below_its_fewest_nodes_an_elastic_job_waits() -> None:
    elastic = Policy(intervals={"shared": 10}, elastic=True, min_nodes=4)
    assert nonzero(run(GivenFault(kind="node_loss", at_step=35), policy=elastic))["node_replacement"] == 995 + 100


def test_what_is_announced_loses_no_work() -> None:
    result = run(GivenFault(kind="planned", at_s=START + 304 + 2 + 35))
    found = nonzero(result)
    assert (found.get("lost_work"), found.get("detection")) == (None, None)
    assert found["checkpoint_wait"] == 27 + 27
    assert result.interruptions[0].lost_steps == 0


def test_saves_that_are_closer_than_their_background_write_wait_for_one_another() -> None:
    # Each begins 12 s after the one before and is committed after 27.
    found = nonzero(run(interval=1, steps=11))
    assert found["checkpoint_blocked"] == 20
    assert found["checkpoint_wait"] == 9 * 15 + 27
    assert found["productive"] == 110


def test_hidden_time_and_waits_for_data_have_their_buckets() -> None:
    slow = Tier(name="shared", save=Save(blocked_s=0, hidden_s=1.5, background_s=20), restore_s=8)
    found = nonzero(run(tiers=(slow,), data_stall_s=0.5, first_step_s=4.0))
    assert (found["checkpoint_hidden"], found["data_stall"], found["productive"]) == (9 * 1.5, 50, 1004)


def test_a_run_that_ends_by_time_is_cut_there_and_not_complete() -> None:
    policy = Policy(intervals={"shared": 10})
    result = simulate(durations(), FOUR, policy, days=500 / 86400, faults=[])
    assert result.wall_s == pytest.approx(500)
    assert not result.complete
    assert result.buckets["unattributed"] == pytest.approx(500 - START - 8 - 430)
    during = simulate(durations(), FOUR, policy, days=500 / 86400, faults=[GivenFault(kind="hang", at_s=490)])
    assert during.buckets["detection"] == pytest.approx(10)
    assert during.interruptions[0].recovered_s is None


def test_a_job_without_checkpoints_begins_at_0_each_time() -> None:
    result = run(GivenFault(kind="hang", at_step=50), policy=Policy(), tiers=())
    assert nonzero(result)["lost_work"] == 490
    assert result.complete
