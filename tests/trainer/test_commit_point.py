"""The rename of the marker is the commit: what fails behind it takes nothing back, and nothing is committed twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint_folder import damage, read_marker
from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config
from tests.trainer.waiting import until

SETS = ("checkpoint.interval_steps=10", "checkpoint.persist_timeout_s=60", "recovery.checkpoint_section_timeout_s=90")


def _session(rank: int, world: int, run_dir: str) -> Session:
    session = Session(run_dir, config(*SETS, world_size=world), rank, world)
    session.checkpoints.restore()
    session.await_writer()
    return session


def _marker(session: Session, step: int) -> Path:
    return session.run.checkpoints / names.step_folder(step) / names.COMMITTED


def _polled(saving: Any) -> Any:
    """The save in flight, after a look."""
    saving.poll()
    return saving._save


def _outcome(session: Session) -> dict[str, Any]:
    return {
        "committed": session.committed(),
        "events": [event["step"] for event in session.events("commit")],
        "failed": [event["error"] for event in session.events("save_failed")],
        "left": [path.name for path in session.run.checkpoints.glob("*.partial")],
    }


def _pointer_cannot_be_written(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    session = _session(rank, world, run_dir)
    (session.run.checkpoints / names.LATEST / "in-the-way").mkdir(parents=True)
    session.steps(1, 10)
    session.settle()
    session.close()
    return _outcome(session)


@pytest.mark.timeout(90)
def test_a_pointer_that_cannot_be_written_does_not_make_a_committed_step_a_failed_save(tmp_path: Path) -> None:
    (outcome,) = run_ranks(_pointer_cannot_be_written, 1, str(tmp_path), timeout_s=80)
    assert outcome == {"committed": [10], "events": [10], "failed": [], "left": []}


def _writer_dies_behind_the_commit(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    session = _session(rank, world, run_dir)
    session.steps(1, 10)
    saving: Any = session.checkpoints._saving
    until(lambda: _polled(saving) is None or saving._save.publish is not None)
    until(lambda: _marker(session, 10).exists())
    pid = session.writer.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # its answer may be under way; what counts is what is on disk
    time.sleep(0.2)
    session.settle()
    session.steps(11, 20)
    session.settle()
    saving.retention.finish(30)
    session.close()
    return _outcome(session)


@pytest.mark.timeout(120)
def test_a_writer_that_dies_right_behind_the_commit_takes_nothing_back(tmp_path: Path) -> None:
    (outcome,) = run_ranks(_writer_dies_behind_the_commit, 1, str(tmp_path), timeout_s=110)
    assert outcome == {"committed": [10, 20], "events": [10, 20], "failed": [], "left": []}


def _saved_again(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    session = _session(rank, world, run_dir)
    session.steps(1, 10)
    session.settle()
    before = _marker(session, 10).stat().st_ino
    session.checkpoints._begin(10)
    session.settle()
    after = _marker(session, 10).stat().st_ino
    session.close()
    return {**_outcome(session), "same_marker": before == after}


@pytest.mark.timeout(90)
def test_a_step_that_is_committed_is_not_replaced_by_a_second_save_of_it(tmp_path: Path) -> None:
    """Replacing means deleting first: a crash in between would lose the commit."""
    for outcome in run_ranks(_saved_again, 2, str(tmp_path), timeout_s=80):
        assert outcome["same_marker"]
        assert outcome["committed"] == [10]
        assert outcome["failed"] == outcome["left"] == []


def _asks_late(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    session = _session(rank, world, run_dir)
    session.steps(1, 10)
    saving: Any = session.checkpoints._saving
    if rank == 0:
        session.settle()
    else:
        save = _polled(saving)
        until(lambda: _polled(saving).acknowledged and saving._store.check([saving._key(save, "over")]))
        saving._save.since -= 10_000  # as if the next save were due hours later
    session.steps(11, 20)
    session.settle()
    session.close()
    return _outcome(session)


@pytest.mark.timeout(90)
def test_a_rank_that_looks_only_at_the_next_save_does_not_take_a_committed_one_for_late(tmp_path: Path) -> None:
    for outcome in run_ranks(_asks_late, 2, str(tmp_path), timeout_s=80):
        assert outcome["committed"] == [10, 20]
        assert outcome["failed"] == []


def _dies_idle(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    session = _session(rank, world, run_dir)
    session.steps(1, 10)
    session.settle()
    session.checkpoints._saving.retention.finish(30)
    pid = session.writer.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not session.writer._caller.process.is_alive())  # type: ignore[union-attr]
    session.steps(11, 20)
    session.settle()
    session.close()
    return _outcome(session)


@pytest.mark.timeout(120)
def test_a_writer_that_dies_while_it_is_idle_costs_no_save(tmp_path: Path) -> None:
    for outcome in run_ranks(_dies_idle, 2, str(tmp_path), timeout_s=110):
        assert outcome["committed"] == [10, 20]
        assert outcome["failed"] == []


def _a_dead_writer_s_last_rename_lands_late(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    """A writer that was killed in its last system call, on storage that answers when the same step is saved again."""
    session = _session(rank, world, run_dir)
    final = session.run.checkpoints / names.step_folder(10)
    final.mkdir(parents=True)
    (final / "pending-of-the-dead").write_text("its marker")
    folder = os.open(final, os.O_RDONLY)
    session.steps(1, 10)
    session.settle()
    landed = True
    try:
        os.rename("pending-of-the-dead", names.COMMITTED, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        landed = False
    os.close(folder)
    session.close()
    ours = read_marker(final)
    assert ours is not None
    return _outcome(session) | {
        "attempt": ours.attempt,
        "landed": landed,
        "damage": list(damage(final, ours.files, ours.block_bytes)),
    }


@pytest.mark.timeout(90)
def test_a_late_rename_in_a_torn_folder_of_the_same_step_does_no_harm(tmp_path: Path) -> None:
    (outcome,) = run_ranks(_a_dead_writer_s_last_rename_lands_late, 1, str(tmp_path), timeout_s=80)
    assert outcome.pop("attempt") == "g1-c0-r0"
    assert outcome.pop("landed") is False
    assert outcome == {"committed": [10], "events": [10], "failed": [], "left": [], "damage": []}
