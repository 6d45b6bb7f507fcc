"""Saving: what is committed is what was, no fault of a writer hangs training, and only whole saves count."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config, same

DELAY = "HOLDFAST_TEST_WRITE_DELAY_S"


def _save_slowly(rank: int, world: int, run_dir: str, delay_s: float) -> tuple[list[int], bool]:
    os.environ[DELAY] = str(delay_s)
    session = Session(run_dir, config("checkpoint.interval_steps=10"), rank, world)
    session.checkpoints.restore()
    session.steps(1, 10)
    at_ten = session.whole()
    session.steps(11, 16)
    before = session.committed()
    session.settle()
    from trainer.checkpoint.compare import read_whole

    read = read_whole(session.run.checkpoints / "step-00000010")
    session.close()
    return before, same(at_ten, read)


@pytest.mark.timeout(90)
def test_a_slow_save_holds_the_values_of_its_step_although_training_went_on(tmp_path: Path) -> None:
    """case-10; and stock DCP reads the files."""
    results = run_ranks(_save_slowly, 2, str(tmp_path), 2.0)
    assert results == [([], True), ([], True)]


def _kill_writer(rank: int, world: int, run_dir: str, how: str) -> dict[str, Any]:
    os.environ[DELAY] = "1.5"
    session = Session(run_dir, config("checkpoint.interval_steps=10", "checkpoint.persist_timeout_s=12"), rank, world)
    session.checkpoints.restore()
    session.await_writer()
    session.steps(1, 10)
    if rank == 1:
        pid = session.writer.pid
        assert pid is not None
        if how == "full":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, 2000))
        else:
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    start = time.monotonic()
    session.steps(11, 19, pause_s=0.02)
    stepping_s = time.monotonic() - start
    session.settle()
    waited_s = time.monotonic() - start
    after_failure = session.committed()
    if rank == 1 and how == "full":
        session.writer.abort()  # the disk is emptied: a new writer has no limit
    os.environ[DELAY] = "0"
    session.await_writer()
    session.steps(20, 20)
    session.settle()
    failed = session.events("save_failed")
    session.close()
    return {
        "stepping_s": stepping_s,
        "waited_s": waited_s,
        "after_failure": after_failure,
        "committed": session.committed(),
        "failed": [event["step"] for event in failed],
        "error": failed[0]["error"] if failed else "",
        "leftovers": [p.name for p in session.run.checkpoints.glob("*.partial")],
    }


@pytest.mark.parametrize(
    ("how", "says", "within_s"),
    [
        ("killed", "ended with code -9", 7),
        ("stopped", "longer than checkpoint.persist_timeout_s", 20),
        ("full", "File too large", 7),
    ],
)
@pytest.mark.timeout(120)
def test_a_writer_that_is_killed_hangs_or_has_no_room_costs_one_save_and_never_stops_training(
    tmp_path: Path, how: str, says: str, within_s: float
) -> None:
    """case-08 (a file-size limit stands for the full disk), and NVRx's endless wait for a dead writer."""
    first, second = run_ranks(_kill_writer, 2, str(tmp_path), how, timeout_s=100)
    assert first["failed"] == [10]
    assert says in first["error"] + second["error"]
    assert first["after_failure"] == []
    assert first["committed"] == second["committed"] == [20]
    assert max(first["stepping_s"], second["stepping_s"]) < 3
    assert max(first["waited_s"], second["waited_s"]) < within_s
    assert first["leftovers"] == []


def _fail_thrice(rank: int, world: int, run_dir: str) -> str:
    from trainer.checkpoint.saving import SavesKeepFailing

    session = Session(run_dir, config("checkpoint.interval_steps=2", "checkpoint.max_failed_saves=3"), rank, world)
    session.checkpoints.restore()
    session.run.checkpoints.mkdir(exist_ok=True)
    try:
        session.await_writer()
        assert session.writer.pid is not None
        resource.prlimit(session.writer.pid, resource.RLIMIT_FSIZE, (10, 10))
        for step in range(1, 9):
            session.step(step)
            session.settle()
    except SavesKeepFailing as error:
        return f"step {step}: {error}"
    finally:
        session.close()
    return "went on"


@pytest.mark.timeout(90)
def test_so_many_failed_saves_in_a_row_end_the_run_with_a_terminal_record(tmp_path: Path) -> None:
    (message,) = run_ranks(_fail_thrice, 1, str(tmp_path))
    assert message.startswith("step 6: 3 saves in a row failed (checkpoint.max_failed_saves=3)")
    assert '"code": 93' in (tmp_path / "TERMINAL.json").read_text()


def _one_rank_is_late(rank: int, world: int, run_dir: str) -> dict[str, Any]:
    os.environ[DELAY] = "4" if rank == 3 else "0"
    session = Session(run_dir, config("checkpoint.interval_steps=5", world_size=4), rank, world)
    session.checkpoints.restore()
    session.await_writer()
    session.steps(1, 5)
    partial = next(session.run.checkpoints.glob("*.partial"), None)
    seen = []
    start = time.monotonic()
    for step in range(6, 10):
        session.step(step)
        seen.append((session.committed(), partial is not None and (partial / "rank-3.json").exists()))
    stepping_s = time.monotonic() - start
    session.settle()
    session.close()
    return {"seen": seen, "stepping_s": stepping_s, "committed": session.committed()}


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_the_marker_waits_for_the_slowest_rank_and_nobody_waits_for_the_marker(tmp_path: Path) -> None:
    """case-11."""
    results = run_ranks(_one_rank_is_late, 4, str(tmp_path), timeout_s=100)
    for result in results:
        assert all(not committed for committed, acknowledged in result["seen"] if not acknowledged)
        assert result["stepping_s"] < 3
        assert result["committed"] == [5]


def _last_save(rank: int, world: int, run_dir: str, delay_s: float, limit_s: float) -> tuple[str, float]:
    from trainer.checkpoint.saving import SavesKeepFailing

    os.environ[DELAY] = str(delay_s)
    overrides = ["training.steps=10", "checkpoint.interval_steps=10", f"checkpoint.persist_timeout_s={limit_s}"]
    session = Session(run_dir, config(*overrides, "checkpoint.max_failed_saves=2"), rank, world)
    session.checkpoints.restore()
    session.steps(1, 10)
    start = time.monotonic()
    try:
        session.checkpoints.finish()
        return "finished", time.monotonic() - start
    except SavesKeepFailing:
        return "gave up", time.monotonic() - start
    finally:
        session.close()


@pytest.mark.timeout(120)
def test_the_last_save_is_awaited_before_the_run_counts_as_complete(tmp_path: Path) -> None:
    """case-07."""
    results = run_ranks(_last_save, 2, str(tmp_path), 3.0, 35.0, timeout_s=100)
    assert [outcome for outcome, _ in results] == ["finished", "finished"]
    assert (tmp_path / "checkpoints/step-00000010/COMMITTED.json").exists()
    assert (tmp_path / "COMPLETE").exists()


@pytest.mark.timeout(60)
def test_a_last_save_that_never_ends_is_given_up_within_its_limit(tmp_path: Path) -> None:
    """case-07."""
    ((outcome, seconds),) = run_ranks(_last_save, 1, str(tmp_path), 1000.0, 5.0)
    assert outcome == "gave up"
    assert seconds < 15
    assert not (tmp_path / "COMPLETE").exists()


def _stale(rank: int, world: int, run_dir: str) -> str:
    from holdfast.run_directory import StaleGeneration

    session = Session(run_dir, config("checkpoint.interval_steps=5"), rank, world)
    session.checkpoints.restore()
    session.steps(1, 4)
    session.run.take(nodes=1, job="test", jobset_attempt=1, pod="newer", lease_s=0.1)
    try:
        session.step(5)
        session.settle()
        return "committed"
    except StaleGeneration as error:
        return str(error)
    finally:
        session.close()


@pytest.mark.timeout(60)
def test_an_older_generation_refuses_to_commit(tmp_path: Path) -> None:
    (message,) = run_ranks(_stale, 1, str(tmp_path))
    assert "generation 1 no longer owns this run; generation 2 (pod newer" in message
    assert not list(tmp_path.glob("checkpoints/step-*/COMMITTED.json"))


def _memory(rank: int, world: int, run_dir: str, hidden: int = 64) -> tuple[list[int], list[int], list[int]]:
    import psutil

    sets = ["checkpoint.interval_steps=1", "training.steps=100"]
    session = Session(run_dir, config(*sets), rank, world, hidden=hidden)
    session.checkpoints.restore()
    own, writer, files = [], [], []
    for step in range(1, 61):
        session.step(step)
        session.settle()
        own.append(psutil.Process().memory_info().rss)
        writer.append(psutil.Process(session.writer.pid).memory_info().rss)
        files.append(psutil.Process(session.writer.pid).num_fds())
    session.close()
    return own, writer, files


@pytest.mark.timeout(260)
def test_sixty_saves_do_not_grow_the_memory_of_trainer_or_writer(tmp_path: Path) -> None:
    """case-09; a save that kept its copy would grow by model and optimizer state each time."""
    ((own, writer, files),) = run_ranks(_memory, 1, str(tmp_path), timeout_s=250)
    assert own[-1] - own[9] < 20e6
    assert writer[-1] - writer[9] < 20e6
    assert files[-1] <= files[9] + 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sixty_saves_of_a_50_mb_model_do_not_grow_memory_by_two_models(tmp_path: Path) -> None:
    """case-09, on two ranks: 37 parameters per hidden unit, and 60 checkpoints of 150 MB."""
    hidden = 50_000_000 // 4 // 37
    for own, writer, _ in run_ranks(_memory, 2, str(tmp_path), hidden, timeout_s=380):
        assert own[-1] - own[9] < 100e6
        assert writer[-1] - writer[9] < 100e6
