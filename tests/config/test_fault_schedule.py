"""Random schedules: one seed, one schedule; each is a valid config, and what must become of it is known."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from holdfast.config import ConfigError, load_profile
from holdfast.config.fault_catalogue import catalogue
from holdfast.config.faults import Fault
from holdfast.faults.schedule import DRAWN, draw, expected, mtbf_steps

SEEDS = range(300)


def _draw(seed: int, **more: Any) -> list[dict[str, Any]]:
    return draw(seed, **{"nodes": 2, "ranks_per_node": 1, "steps": 20, **more})


def _expected(*faults: dict[str, Any], sets: tuple[str, ...] = ()) -> Any:
    return expected(faults, load_profile("cpu-test", list(sets)))


def test_the_same_seed_gives_the_same_schedule_and_others_give_others() -> None:
    schedules = [_draw(seed) for seed in SEEDS]
    assert schedules == [_draw(seed) for seed in SEEDS]
    assert len({json.dumps(schedule) for schedule in schedules}) > 0.9 * len(schedules)
    # Pinned: a seed that failed must still give the same schedule when somebody repeats it.
    assert _draw(7) == PINNED


PINNED: list[dict[str, Any]] = [{"kind": "network_partition", "phase": "forward", "step": 14, "rank": 1}]


def test_every_schedule_is_accepted_and_most_end_bit_equal() -> None:
    ends = Counter[str]()
    for seed in SEEDS:
        schedule = _draw(seed)
        config = load_profile("cpu-test", [f"faults={json.dumps(schedule)}"])
        assert 1 <= len(schedule) <= 4 and len(config.faults) == len(schedule)
        assert [fault["step"] for fault in schedule] == sorted(fault["step"] for fault in schedule)
        ends[expected(schedule, config).end] += 1
    assert set(ends) <= {"bit_equal", "none"} and ends["bit_equal"] > 0.95 * len(SEEDS)


def test_every_drawn_kind_comes_in_each_of_its_phases_and_sometimes_two_at_once() -> None:
    seen, at_once = Counter[tuple[str, str]](), 0
    for seed in range(3000):
        schedule = _draw(seed)
        seen.update((fault["kind"], fault["phase"]) for fault in schedule)
        at_once += max(Counter(fault["step"] for fault in schedule).values()) == 2
    fair = {
        (row.kind, row.phase)
        for row in catalogue().rows()
        if row.kind in DRAWN and not row.refused and row.end == "bit_equal"
    }
    assert set(seen) == fair
    assert at_once > 300


def test_count_kinds_and_ranks_are_obeyed() -> None:
    schedule = _draw(3, count=6, kinds=["exception", "hang"], nodes=2, ranks_per_node=4)
    assert len(schedule) == 6 and {fault["kind"] for fault in schedule} <= {"exception", "hang"}
    ranks = {fault["rank"] for seed in range(50) for fault in _draw(seed, ranks_per_node=4)}
    assert ranks == set(range(8))
    assert _draw(1, count=0) == []
    assert {fault["kind"] for fault in _draw(1, kinds=["nan_loss"])} == {"nan_loss"}, "asked for by name it is drawn"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"nodes": 0}, "1 or more"),
        ({"steps": 0}, "1 or more"),
        ({"count": 1, "mtbf_steps": 5.0}, "only one"),
        ({"mtbf_steps": 0.0}, "above 0"),
        ({"kinds": ["meteor"]}, "meteor"),
        ({"kinds": []}, "none is given"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _draw(1, **arguments)


def test_by_rate_there_are_as_many_as_the_rate_says() -> None:
    steps, mean = 1000, 100.0
    numbers = [len(_draw(seed, steps=steps, mtbf_steps=mean)) for seed in range(200)]
    # Poisson with mean 10, less what does not go together (saves, starts, a second damaged checkpoint).
    assert 7 < sum(numbers) / len(numbers) < 10.5
    assert [] in [_draw(seed, mtbf_steps=100.0) for seed in range(50)]


def test_the_rate_of_a_preset_becomes_steps() -> None:
    per_day = 6.5e-3 * 100  # rsc1: node failures only
    assert mtbf_steps("rsc1", nodes=100, step_s=2.0) == pytest.approx(86_400 / per_day / 2)
    assert mtbf_steps("none", nodes=100, step_s=2.0) == math.inf
    assert _draw(1, mtbf_steps=math.inf) == []
    assert mtbf_steps("llama3-405b", nodes=2048, step_s=10) < mtbf_steps("llama3-405b", nodes=8, step_s=10)
    with pytest.raises(ConfigError):
        mtbf_steps("weekdays", nodes=1, step_s=1)


# --- what must become of them ---

HANG = {"kind": "hang", "step": 8}


def test_the_detector_and_its_limit_follow_the_layers_and_the_phase() -> None:
    (alone,) = _expected(HANG).detected
    assert (alone.limit, alone.limit_s) == ("recovery.step_section_timeout_s", 20)
    (nested,) = _expected(HANG, sets=("recovery.in_process=true",)).detected
    assert (nested.limit, nested.limit_s) == ("recovery.in_process_soft_timeout_s", 8)
    (starting,) = _expected({**HANG, "phase": "restore"}, sets=("recovery.in_process=true",)).detected
    assert starting.limit == "recovery.restore_section_timeout_s"
    (early,) = _expected({**HANG, "step": 1}, sets=("recovery.in_process=true",)).detected
    assert early.limit == "recovery.init_section_timeout_s"
    (saving,) = _expected({**HANG, "phase": "commit"}).detected
    assert saving.limit == "recovery.checkpoint_section_timeout_s"
    (held,) = _expected({**HANG, "kind": "hang_gil"}, sets=("recovery.in_process=true",)).detected
    assert held.limit == "recovery.in_process_hard_timeout_s"
    assert alone.ends_attempt and alone.certain


@pytest.mark.parametrize(
    ("fault", "sets", "end", "by"),
    [
        ({"kind": "nan_loss"}, (), "terminal", "bad_loss"),
        ({"kind": "nan_loss"}, ("recovery.on_bad_loss=skip_batch",), "none", "bad_loss"),
        ({"kind": "loss_spike"}, (), "none", "nobody"),
        (
            {"kind": "loss_spike", "step": 15},
            ("recovery.loss_spike_factor=3", "recovery.loss_spike_window_steps=8"),
            "terminal",
            "bad_loss",
        ),
        ({"kind": "node_loss"}, (), "bit_equal", "pod"),
        ({"kind": "node_loss"}, ("recovery.min_nodes=1", "recovery.shrink_after_s=60"), "within_tolerance", "pod"),
        ({"kind": "rank_sigstop", "for_s": 1}, (), "bit_equal", "nobody"),
        ({"kind": "rank_sigstop", "for_s": 5}, (), "bit_equal", "collective"),
        ({"kind": "slow_disk", "phase": "persist", "for_s": 1}, (), "bit_equal", "nobody"),
        ({"kind": "slow_disk", "phase": "persist", "for_s": 30}, (), "bit_equal", "save_failed"),
        ({"kind": "bit_flip_stored", "phase": "persist", "step": 12}, (), "bit_equal", "checksum"),
        ({"kind": "bit_flip_stored", "phase": "persist", "step": 17}, (), "none", "checksum"),
        ({"kind": "bit_flip_staged", "phase": "stage"}, (), "none", "nobody"),
        ({"kind": "writer_death"}, (), "bit_equal", "replaced"),
        ({"kind": "writer_death", "phase": "persist"}, (), "bit_equal", "save_failed"),
    ],
)
def test_the_end_follows_the_config(fault: dict[str, Any], sets: tuple[str, ...], end: str, by: str) -> None:
    promised = _expected({"step": 8, **fault}, sets=sets)
    assert (promised.end, promised.detected[0].detected_by) == (end, by)


def test_what_several_faults_do_together_is_not_promised_where_a_stop_rule_counts_them() -> None:
    at_once = [{"kind": "exception", "step": 8, "phase": phase} for phase in ("forward", "backward", "collective")]
    assert _expected(*at_once[:2]).end == "bit_equal"
    assert _expected(*at_once).end == "none", "recovery.same_step_limit=3"
    flips = [{"kind": "bit_flip_stored", "step": step} for step in (8, 12)]
    assert _expected(flips[0]).end == "bit_equal" and _expected(*flips).end == "none"
    full = [{"kind": "full_disk", "phase": "persist", "step": step} for step in (3, 8, 12)]
    assert _expected(*full[:2]).end == "bit_equal" and _expected(*full).end == "none", "checkpoint.max_failed_saves=3"
    assert _expected().end == "bit_equal"


def test_the_whole_ends_as_its_weakest_promise_and_nothing_is_certain_after_the_end() -> None:
    promised = _expected({"kind": "exception", "step": 5}, {"kind": "nan_loss", "step": 8}, {"kind": "hang", "step": 9})
    assert promised.end == "terminal"
    assert [one.certain for one in promised.detected] == [True, True, False]
    assert promised.detected_by["hang-rank0-step9"] == "silent"


def test_what_needs_a_restart_or_a_second_checkpoint_is_not_certain() -> None:
    entries = [
        {"kind": "exception", "step": 2, "phase": "restore"},
        {"kind": "exception", "step": 1, "phase": "restore"},
        {"kind": "bit_flip_stored", "step": 8},
    ]
    assert [one.certain for one in _expected(*entries).detected] == [False, True, False]
    assert Fault.model_validate(entries[0]).id in _expected(*entries).detected_by
