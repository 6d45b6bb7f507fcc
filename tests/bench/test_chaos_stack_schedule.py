"""What a seed of the campaign `stack` stands for."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.chaos.stack.schedule import LAYERS, SHAPES, STEPS, Schedule
from bench.chaos.stack.source import TERMINAL_KINDS, damages_commits
from bench.chaos.stack.trial import FAULT_LIMIT_S, START_LIMIT_S, limit_s
from holdfast.faults.schedule import DRAWN

SEEDS = range(200)


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    """Those of a whole campaign."""
    return [Schedule.draw(seed) for seed in SEEDS]


def test_a_seed_means_the_same_everywhere(schedules: list[Schedule]) -> None:
    assert [Schedule.draw(seed) for seed in range(0, 200, 20)] == schedules[::20]
    assert len({repr(schedule.faults) for schedule in schedules}) > 190


def test_a_campaign_meets_every_size_every_layer_and_every_kind_that_can_be_drawn(schedules: list[Schedule]) -> None:
    assert {(schedule.nodes, schedule.ranks_per_node) for schedule in schedules} == set(SHAPES)
    assert {schedule.layers for schedule in schedules} == set(LAYERS)
    assert {schedule.steps for schedule in schedules} == set(STEPS)
    for what in ("spares", "standby", "local"):
        some = sum(bool(getattr(schedule, what)) for schedule in schedules)
        assert 10 < some < 190, what
    kinds = Counter(fault["kind"] for schedule in schedules for fault in schedule.faults)
    assert set(kinds) == {*DRAWN, *TERMINAL_KINDS}
    assert {len(schedule.faults) for schedule in schedules} == {1, 2, 3, 4}


def test_some_faults_strike_at_the_same_step(schedules: list[Schedule]) -> None:
    at_once = [s for s in schedules if len({fault["step"] for fault in s.faults}) < len(s.faults)]
    assert len(at_once) > 20


def test_every_schedule_has_an_end_that_can_be_judged(schedules: list[Schedule]) -> None:
    ends = Counter(schedule.expected.end for schedule in schedules)
    assert set(ends) == {"bit_equal", "terminal"} and ends["terminal"] < 40
    for schedule in schedules:
        terminal = any(fault["kind"] in TERMINAL_KINDS for fault in schedule.faults)
        assert (schedule.expected.end == "terminal") == terminal


def test_what_cannot_change_the_weights_shares_a_job_in_peace(schedules: list[Schedule]) -> None:
    in_peace = {schedule.peace().model_dump_json() for schedule in schedules}
    assert len(in_peace) == len(SHAPES) * len(STEPS)
    for schedule in schedules[:20]:
        calm, config = schedule.peace(), schedule.config()
        for same in ("model", "data", "seed"):
            assert getattr(calm, same) == getattr(config, same)
        unlike = {"min_step_s": 0.0}
        assert calm.training == config.training.model_copy(update=unlike)
        assert calm.world_size == config.world_size and not calm.faults


def test_a_job_has_a_limit_that_grows_with_its_faults(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        assert limit_s(schedule) == START_LIMIT_S + FAULT_LIMIT_S * len(schedule.faults)


def test_only_a_flip_in_what_is_stored_excuses_a_commit_that_is_not_whole(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        assert damages_commits(schedule.faults) == ("bit_flip_stored" in [fault["kind"] for fault in schedule.faults])
