"""What all ranks have written is committed by rank 0's writer alone, and only then; whatever the trainers do."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast import lineage
from holdfast.checkpoint_folder import read_marker
from holdfast.config import names
from holdfast.lineage import StaleAttempt
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config
from tests.trainer.waiting import until

SETS = ("checkpoint.interval_steps=10", "checkpoint.persist_timeout_s=100", "recovery.checkpoint_section_timeout_s=120")
"""So long that no test gets anywhere by waiting for it."""


class Rank:
    """One rank of an attempt, at whose writers somebody pulls."""

    def __init__(self, rank: int, world: int, run_dir: str) -> None:
        self.rank = rank
        self.session = Session(run_dir, config(*SETS, world_size=world), rank, world)
        self.session.checkpoints.restore()
        self.session.await_writer()
        self.saving: Any = self.session.checkpoints._saving

    def hand_over(self, step: int) -> None:
        """Ten more steps; the save of the last one is then with the writer, and nobody looks after it."""
        dist.barrier()
        self.session.steps(step - 9, step)
        assert self.saving._save.write is not None

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank's writer; all ranks go on behind it."""
        if self.rank == rank:
            os.kill(self.session.writer.pid or 0, number)
        dist.barrier()

    def limit_files_of(self, rank: int, size: int) -> None:
        """No file that a rank's writer writes gets larger, in bytes; a full disk, as far as it can tell."""
        if self.rank == rank:
            resource.prlimit(self.session.writer.pid or 0, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def until(self, rank: int, condition: Callable[[], object]) -> None:
        """One rank waits for a condition, and all for it."""
        if self.rank == rank:
            until(condition)
        dist.barrier()

    def committed(self, step: int) -> bool:
        """Whether the step is committed on disk."""
        return read_marker(self.session.run.checkpoints / names.step_folder(step)) is not None

    def waits(self, step: int) -> bool:
        """Whether rank 0's writer has written its part, behind which it waits for the others."""
        return any(self.session.run.checkpoints.glob(f"{names.step_folder(step)}.*/rank-0.json"))

    def settle(self) -> dict[str, Any]:
        """Look until the save is over; what this rank knows then."""
        self.session.settle()
        failed = {event["step"]: event["error"] for event in self.session.events("save_failed")}
        known = {
            "committed": self.session.committed(),
            "told": [event["step"] for event in self.session.events("commit")],
            "failed": failed,
            "writer": self.session.writer.pid,
        }
        dist.barrier()
        return known


def _one_that_nobody_kills(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    me = Rank(rank, world, run_dir)
    told: dict[str, Any] = {"pid": me.session.writer.pid}

    me.hand_over(10)
    me.until(0, lambda: me.committed(10))
    told["nobody looks"] = (me.saving._save is not None, me.settle())

    me.limit_files_of(1, 2000)
    me.hand_over(20)
    told["a part fails"] = me.settle()
    me.limit_files_of(1, resource.RLIM_INFINITY)
    me.hand_over(30)
    told["the save after it"] = me.settle()

    me.signal(1, signal.SIGSTOP)
    me.hand_over(40)
    me.until(0, lambda: me.waits(40))
    if rank == 0:
        lineage.begin(me.session.run, "g1-c1-r0", 1)
    me.signal(1, signal.SIGCONT)
    if rank == 0:
        try:
            me.session.settle()
        except StaleAttempt as error:
            told["stale"] = str(error)
    dist.barrier()
    told["at the end"] = me.session.committed()
    me.session.close()
    return told


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Both ranks' accounts: writers are slow to start, so that all happens in one attempt."""
    return run_ranks(_one_that_nobody_kills, 2, str(tmp_path_factory.mktemp("run")), timeout_s=110)


@pytest.mark.timeout(120)
def test_a_step_is_committed_while_no_trainer_looks_after_it(story: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(story):
        in_flight, known = told["nobody looks"]
        assert in_flight, "the trainer has not looked yet"
        assert known["committed"] == [10] and not known["failed"]
        assert known["told"] == ([10] if rank == 0 else [])


def test_a_part_that_fails_ends_the_wait_and_costs_no_writer(story: list[dict[str, Any]]) -> None:
    """The wait's own limit would end the test; and the writer that waited is of use for the next save."""
    failed = story[0]["a part fails"]
    assert failed["committed"] == [10]
    assert "File too large" in failed["failed"][20]
    after = story[0]["the save after it"]
    assert after["committed"] == [10, 30] and set(after["failed"]) == {20}
    for told in story:
        assert told["the save after it"]["writer"] == told["pid"]


def test_a_writer_whose_attempt_is_over_when_the_last_part_comes_refuses(story: list[dict[str, Any]]) -> None:
    assert "attempt g1-c0-r0 was aborted: g1-c1-r0 is the current one" in story[0]["stale"]
    assert story[0]["at the end"] == story[1]["at the end"] == [10, 30]


def _two_that_are_killed(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    me = Rank(rank, world, run_dir)
    told = {}

    me.hand_over(10)
    me.until(0, lambda: me.committed(10))
    me.signal(0, signal.SIGKILL)
    told["before the first look"] = me.settle()
    me.session.await_writer()

    me.signal(1, signal.SIGSTOP)
    me.hand_over(20)
    me.until(0, lambda: me.waits(20))
    me.signal(0, signal.SIGKILL)
    me.signal(1, signal.SIGCONT)
    told["in the wait"] = me.settle()

    me.hand_over(30)
    told["the save after it"] = me.settle()
    me.session.close()
    return told


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_writer_killed_behind_its_commit_takes_nothing_back_and_one_killed_in_the_wait_costs_that_save(
    tmp_path: Path,
) -> None:
    first, second = run_ranks(_two_that_are_killed, 2, str(tmp_path), timeout_s=170)
    for told in (first, second):
        assert (told["before the first look"]["committed"], told["before the first look"]["failed"]) == ([10], {})
    assert first["before the first look"]["told"] == [10]
    assert first["in the wait"]["committed"] == [10]
    assert "ended with code -9" in first["in the wait"]["failed"][20]
    assert first["the save after it"]["committed"] == second["the save after it"]["committed"] == [10, 30]


def _urgent(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    me = Rank(rank, world, run_dir)
    me.session.steps(1, 3)
    me.signal(1, signal.SIGSTOP)
    if rank == 1:
        threading.Timer(1.0, os.kill, (me.session.writer.pid or 0, signal.SIGKILL)).start()
    saved = me.session.checkpoints.save_urgently(3, 90)
    known = me.settle()
    me.session.close()
    return {"saved": saved, **known}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_urgent_save_whose_writer_dies_is_made_again_while_time_is_left(tmp_path: Path) -> None:
    first, second = run_ranks(_urgent, 2, str(tmp_path), timeout_s=110)
    assert first["saved"] and second["saved"]
    assert first["committed"] == [3]
    assert "ended with code -9" in second["failed"][3]
