"""A bad loss never reaches the weights, all ranks decide alike, and a replay after a restart decides the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config import names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, write_atomically
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks
from trainer.restart.bad_loss import BadLoss, Losses, Skipped, read_skipped, read_window
from trainer.runtime import Attempt

SPIKES = ("recovery.loss_spike_factor=3", "recovery.loss_spike_window_steps=8")


def losses(folder: Path, *sets: str, rank: int = 0, cycle: int = 0, restored: int = 0) -> Losses:
    """What a rank of an attempt has, as it is after `begin`; the collective of `begin` is tested with real ranks."""
    run = RunDirectory(folder)
    if run.owner() is None:
        run.take(nodes=1, job="job", jobset_attempt=0, pod="control", lease_s=0.1)
    config = configured(*sets)
    survivors: Any = SimpleNamespace(
        config=config, run=run, identity=SimpleNamespace(rank=rank), log=EventLog(run.events, "rank", rank=rank)
    )
    made = Losses(survivors, Attempt(1, cycle, 0))
    skipped = made.settled(restored)
    made.know(skipped, read_window(run, restored, config.recovery, skipped))
    return made


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for log in (folder / "events").iterdir() for line in log.read_text().splitlines()]
    return sorted((event for event in map(json.loads, lines) if event["name"] == name), key=lambda event: event["t"])


@pytest.mark.parametrize(("norm", "loss"), [(1.0, math.nan), (math.nan, 1.0), (math.inf, 1.0), (1.0, -math.inf)])
def test_what_is_not_finite_ends_the_run_with_step_and_value(tmp_path: Path, norm: float, loss: float) -> None:
    judge = losses(tmp_path)
    assert judge.accepts(1, 1.0, 2.0)
    with pytest.raises(BadLoss):
        judge.accepts(2, norm, loss, 0.5)
    assert [event["own_loss"] for event in events(tmp_path, "bad_loss")] == ["0.5"], "of this rank's part of the batch"
    terminal = RunDirectory(tmp_path).terminal()
    assert terminal is not None and (terminal.code, terminal.step) == (93, 2)
    assert f"mean loss {loss:g}, gradient norm {norm:g}" in terminal.reason and "on_bad_loss=stop" in terminal.reason


def test_a_skipped_batch_makes_no_update_and_is_skipped_again_whatever_its_loss_then_is(tmp_path: Path) -> None:
    skip = "recovery.on_bad_loss=skip_batch"
    judge = losses(tmp_path, skip)
    assert [judge.accepts(step, 1.0, loss) for step, loss in ((1, 2.0), (2, math.nan), (3, 2.0))] == [True, False, True]
    replay = losses(tmp_path, skip, cycle=1)
    assert [replay.accepts(step, 1.0, 2.0) for step in (1, 2, 3)] == [True, False, True]
    assert [event["again"] for event in events(tmp_path, "batch_skipped")] == [False, True]
    assert RunDirectory(tmp_path).terminal() is None


def test_rolling_back_leaves_out_every_batch_after_the_commit(tmp_path: Path) -> None:
    roll_back = "recovery.on_bad_loss=roll_back"
    run = RunDirectory(tmp_path)
    write_atomically(run.checkpoints / names.step_folder(5) / names.COMMITTED, "{}")
    with pytest.raises(BadLoss, match="step 8"):
        losses(tmp_path, roll_back).accepts(8, 1.0, math.nan)
    assert run.terminal() is None
    for cycle in (1, 2):
        replay = losses(tmp_path, roll_back, cycle=cycle, restored=5)
        assert [replay.accepts(step, 1.0, 2.0) for step in range(6, 11)] == [False, False, False, True, True]


def test_what_a_roll_back_leaves_out_begins_behind_the_step_that_is_restored_whenever_that_was_committed(
    tmp_path: Path,
) -> None:
    """A save of step 7 was under way at the bad loss of step 8, and was committed after: its weights know 6 and 7."""
    roll_back = "recovery.on_bad_loss=roll_back"
    run = RunDirectory(tmp_path)
    write_atomically(run.checkpoints / names.step_folder(5) / names.COMMITTED, "{}")
    with pytest.raises(BadLoss, match="step 8"):
        losses(tmp_path, roll_back).accepts(8, 1.0, math.nan)
    write_atomically(run.checkpoints / names.step_folder(7) / names.COMMITTED, "{}")
    assert not losses(tmp_path, roll_back, cycle=1, restored=7).accepts(8, 1.0, 2.0)
    # Should step 7 turn out to be damaged, the replay makes the same updates as the run did.
    replay = losses(tmp_path, roll_back, cycle=2, restored=5)
    assert [replay.accepts(step, 1.0, 2.0) for step in range(6, 10)] == [True, True, False, True]


def test_the_running_median_after_a_restart_knows_no_loss_of_a_step_that_was_rolled_back(tmp_path: Path) -> None:
    sets = (*SPIKES, "recovery.on_bad_loss=roll_back")
    judge = losses(tmp_path, *sets)
    for step in range(1, 8):
        judge.accepts(step, 1.0, float(step))
    with pytest.raises(BadLoss):
        judge.accepts(8, 1.0, math.nan)
    replay = losses(tmp_path, *sets, cycle=1, restored=5)
    for step in range(6, 11):
        replay.accepts(step, 1.0, float(step))
    assert list(replay.window) == [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 10.0]
    assert losses(tmp_path, *sets, cycle=2, restored=10).window == replay.window


@pytest.mark.parametrize("policy", ["skip_batch", "roll_back"])
def test_so_many_bad_losses_and_no_more_are_borne_in_the_life_of_a_run(tmp_path: Path, policy: str) -> None:
    sets = (f"recovery.on_bad_loss={policy}", "recovery.max_bad_losses=2")
    for attempt, step in enumerate((1, 2)):
        judge = losses(tmp_path, *sets, cycle=attempt)
        if policy == "skip_batch":
            assert not judge.accepts(step, 1.0, math.nan)
        else:
            with pytest.raises(BadLoss):
                judge.accepts(step, 1.0, math.nan)
    assert RunDirectory(tmp_path).terminal() is None
    with pytest.raises(BadLoss):
        losses(tmp_path, *sets, cycle=2).accepts(3, 1.0, math.nan)
    terminal = RunDirectory(tmp_path).terminal()
    assert terminal is not None and "recovery.max_bad_losses=2 are used up" in terminal.reason


def test_a_spike_is_a_loss_above_the_factor_times_the_running_median_of_a_full_window(tmp_path: Path) -> None:
    judge = losses(tmp_path, *SPIKES, "recovery.on_bad_loss=skip_batch")
    assert judge.accepts(1, 1.0, 99.0), "no window yet"
    assert all(judge.accepts(step, 1.0, 2.0) for step in range(2, 9))
    assert judge.accepts(9, 1.0, 6.0), "3 x the median is not above it"
    assert not judge.accepts(10, 1.0, 6.1)
    assert 6.1 not in judge.window and judge.accepts(11, 1.0, 2.0), "the spike has not come into the median"


def test_the_running_median_after_a_restart_is_the_one_of_an_unbroken_run(tmp_path: Path) -> None:
    """Steps 7 to 9 were executed and rolled back; their replay, and what was torn, must not change the window."""
    judge = losses(tmp_path, *SPIKES)
    values = [1.0 + 0.1 * step for step in range(1, 10)]
    for step, value in enumerate(values, 1):
        judge.accepts(step, 1.0, value)
    with open(tmp_path / names.LOSSES, "a") as file:
        file.write("[10, 1.\n")
    assert read_window(RunDirectory(tmp_path), 6, configured(*SPIKES).recovery, Skipped()) == values[:6]
    again = losses(tmp_path, *SPIKES, cycle=1, restored=6)
    for step, value in enumerate(values[6:], 7):
        again.accepts(step, 1.0, value)
    assert again.window == judge.window
    assert read_window(RunDirectory(tmp_path), 9, configured(*SPIKES).recovery, Skipped()) == values[1:]


def test_a_record_that_cannot_be_read_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert read_skipped(run) == Skipped()
    for content in ("", "[]", '{"why": {"x": "y"}, "bad": 1}', '{"bad": 1}'):
        (tmp_path / names.SKIPPED_BATCHES).write_text(content)
        with pytest.raises(OSError, match=names.SKIPPED_BATCHES):
            read_skipped(run)


def _begins(rank: int, world_size: int, folder: str) -> list[Any]:
    """The same on each rank, from rank 0's records; and its error on all."""
    run = RunDirectory(Path(folder))
    seen: list[Any] = []
    for content in ('{"why": {"3": "spike"}, "bad": 1}', "{"):
        if rank == 0:
            (run.path / names.SKIPPED_BATCHES).write_text(content)
        config = configured("recovery.on_bad_loss=skip_batch")
        log = EventLog(run.path / f"events{rank}", "rank", rank=rank)
        survivors: Any = SimpleNamespace(config=config, run=run, identity=SimpleNamespace(rank=rank), log=log)
        judge = Losses(survivors, Attempt(1, 1, 0))
        try:
            judge.begin(2)
            seen.append([judge.accepts(step, 1.0, 1.0) for step in (3, 4)])
        except OSError as error:
            seen.append("skipped_batches.json" in str(error))
    return seen


def test_every_rank_knows_what_rank_0_reads_and_none_waits_when_it_cannot(tmp_path: Path) -> None:
    assert run_ranks(_begins, 2, str(tmp_path)) == [[[False, True], True]] * 2
