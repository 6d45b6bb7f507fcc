"""When a fault is due: the rule of each phase, two at once, and what a loop without faults pays."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint_folder import Marker
from holdfast.config import names
from holdfast.config.faults import Fault
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from trainer.faults import Faults, InjectedFault
from trainer.faults.writer_acts import under
from trainer.runtime import Identity


def faults(folder: Path, *entries: dict[str, Any], rank: int = 0) -> Faults:
    """As a new process of the run sees them."""
    run = RunDirectory(folder)
    return Faults(map(Fault.model_validate, entries), run, rank, EventLog(run.events, "rank", rank=rank))


def events(folder: Path) -> list[dict[str, Any]]:
    """Faults and disturbances that have struck."""
    lines = [line for log in (folder / "events").iterdir() for line in log.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["name"] in ("fault", "disturbance")]


def commit(folder: Path, step: int) -> None:
    """A step that says it is committed."""
    place = RunDirectory(folder).checkpoints / names.step_folder(step)
    place.mkdir(parents=True)
    (place / "__0_0.distcp").write_bytes(bytes(1000))
    (place / names.COMMITTED).write_text(Marker(step, "g1-c0-r0", 1, 1, ()).text())


@pytest.mark.parametrize("phase", ["forward", "backward", "collective", "optimizer"])
def test_a_phase_of_a_step_is_struck_in_that_step_and_in_no_other_phase(tmp_path: Path, phase: Any) -> None:
    mine = faults(tmp_path, {"kind": "exception", "step": 5, "phase": phase})
    for step in (4, 6):
        mine.strike(phase, step)
    for other in (
        "start_up",
        "forward",
        "backward",
        "collective",
        "optimizer",
        "stage",
        "persist",
        "commit",
        "restore",
    ):
        if other != phase:
            mine.strike(other, 5)
    assert events(tmp_path) == []
    with pytest.raises(InjectedFault):
        mine.strike(phase, 5)
    mine.strike(phase, 5)


@pytest.mark.parametrize("phase", ["stage", "persist", "commit"])
def test_a_phase_of_a_save_is_struck_at_the_first_save_from_its_step_on(tmp_path: Path, phase: Any) -> None:
    mine = faults(tmp_path, {"kind": "exception", "step": 12, "phase": phase})
    mine.strike(phase, 10)
    with pytest.raises(InjectedFault):
        mine.strike(phase, 15)
    assert [event["step"] for event in events(tmp_path)] == [15], "the event names the save that it struck"


@pytest.mark.parametrize("phase", ["start_up", "restore"])
def test_a_phase_of_an_attempt_is_struck_in_the_first_one_that_finds_enough_committed(
    tmp_path: Path, phase: Any
) -> None:
    entry = {"kind": "exception", "step": 11, "phase": phase}
    faults(tmp_path, entry).strike(phase)
    commit(tmp_path, 5)
    faults(tmp_path, entry).strike(phase)
    commit(tmp_path, 10)
    with pytest.raises(InjectedFault):
        faults(tmp_path, entry).strike(phase)
    faults(tmp_path, entry).strike(phase)
    with pytest.raises(InjectedFault):
        faults(tmp_path / "fresh", entry | {"step": 1}).strike(phase)


def test_of_two_at_one_step_both_strike_and_the_one_that_ends_the_attempt_comes_last(tmp_path: Path) -> None:
    mine = faults(tmp_path, {"kind": "exception", "step": 3}, {"kind": "nan_loss", "step": 3})
    import torch

    with pytest.raises(InjectedFault):
        mine.strike("forward", 3)
    assert [(event["name"], event["kind"]) for event in events(tmp_path)] == [
        ("disturbance", "nan_loss"),
        ("fault", "exception"),
    ]
    assert math.isnan(mine.on_loss(3, torch.ones(())).item())


def test_two_that_end_an_attempt_each_end_one(tmp_path: Path) -> None:
    entries = ({"kind": "exception", "step": 3}, {"kind": "exception", "step": 3, "phase": "backward"})
    with pytest.raises(InjectedFault, match=r"exception-rank0-step3$"):
        faults(tmp_path, *entries).strike("forward", 3)
    again = faults(tmp_path, *entries)
    again.strike("forward", 3)
    with pytest.raises(InjectedFault, match="exception-rank0-step3-backward"):
        again.strike("backward", 3)


def test_backward_strikes_inside_the_backward_pass(tmp_path: Path) -> None:
    import torch

    mine = faults(tmp_path, {"kind": "exception", "step": 3, "phase": "backward"})
    weight = torch.ones(2, requires_grad=True)
    loss = mine.on_loss(3, weight.sum())
    with pytest.raises(InjectedFault):
        loss.backward()
    assert weight.grad is None


def test_a_request_to_the_writer_is_the_plain_one_unless_something_is_due_in_it(tmp_path: Path) -> None:
    mine = faults(
        tmp_path,
        {"kind": "full_disk", "step": 10, "phase": "persist"},
        {"kind": "slow_disk", "step": 10, "phase": "persist", "for_s": 2},
        {"kind": "writer_death", "step": 10, "phase": "commit"},
    )
    assert mine.request("persist", 5, print, "folder") == (print, "folder")
    both = mine.request("persist", 10, print, "folder")
    assert both[0] is under and {both[1], both[7]} == {"full_disk", "slow_disk"} and both[-2:] == (print, "folder")
    assert mine.request("persist", 15, print, "folder") == (print, "folder")
    assert mine.request("commit", 10, print, "folder", 7)[:2] == (under, "writer_death")
    assert {event["name"] for event in events(tmp_path)} == {"disturbance"}


def test_a_checkpoint_is_damaged_only_when_there_is_another_one(tmp_path: Path) -> None:
    """A run whose only checkpoint is damaged ends for good, which is another test's business."""
    mine = faults(tmp_path, {"kind": "bit_flip_stored", "step": 7})
    commit(tmp_path, 5)
    mine.strike("forward", 7)
    assert events(tmp_path) == []
    commit(tmp_path, 10)
    mine.strike("forward", 12)
    checkpoints = RunDirectory(tmp_path).checkpoints
    counts = [
        sum(byte.bit_count() for byte in (checkpoints / f"step-{step:08d}/__0_0.distcp").read_bytes())
        for step in (5, 10)
    ]
    assert counts == [0, 1] and [event["step"] for event in events(tmp_path)] == [12]


def test_the_name_of_the_store_does_not_resolve_once(tmp_path: Path) -> None:
    identity = Identity(0, 2, 0, 1, 0, "pod", "node", "control.example:29400")
    mine = faults(tmp_path, {"kind": "dns_failure", "step": 1, "phase": "start_up"})
    mine.strike("start_up")
    assert mine.resolved(identity).store == "control.example.invalid:29400"
    assert mine.resolved(identity) is identity


def test_a_slow_rank_takes_its_factor_longer_for_its_steps_and_then_no_more(tmp_path: Path) -> None:
    mine = faults(tmp_path, {"kind": "slow_rank", "step": 2, "for_steps": 2, "factor": 3})
    took = []
    for step in range(1, 6):
        start = time.monotonic()
        mine.strike("forward", step)
        time.sleep(0.1)
        mine.strike("collective", step)
        took.append(time.monotonic() - start)
    assert min(took[1:3]) >= 0.3 and sum(took[:1] + took[3:]) < sum(took[1:3])


def test_what_ends_no_attempt_is_a_disturbance_and_no_failure_to_the_ledger(tmp_path: Path) -> None:
    faults(tmp_path, {"kind": "nan_loss", "step": 1}).strike("forward", 1)
    with pytest.raises(InjectedFault):
        faults(tmp_path, {"kind": "exception", "step": 1}).strike("forward", 1)
    assert {event["name"]: event["kind"] for event in events(tmp_path)} == {
        "disturbance": "nan_loss",
        "fault": "exception",
    }
