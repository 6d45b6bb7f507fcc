"""The learned limit of a step: a factor times the longest seen, between its floor and what is configured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.run_directory import RunDirectory
from tests.trainer.conftest import configured
from trainer.restart.learned_limits import StepLimit

LIMITS = (
    "recovery.step_section_timeout_s=100",
    "recovery.step_timeout_floor_s=10",
    "recovery.step_timeout_factor=5",
    "recovery.step_timeout_after_steps=3",
)


def limit(folder: Path, *more: str, rank: int = 0, world_size: int = 2) -> StepLimit:
    return StepLimit(configured(*LIMITS, *more), RunDirectory(folder), rank, world_size)


def until_written(folder: Path) -> None:
    """The record is written aside."""
    deadline = time.monotonic() + 10
    while not (folder / names.STEP_SEEN).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_limit_follows_the_longest_step_between_floor_and_config(tmp_path: Path) -> None:
    learned = limit(tmp_path)
    assert learned.at_start() is None
    assert [learned.saw(seconds) for seconds in (1.0, 1.5, 1.0)] == [None, None, 10.0], "the floor, after 3 steps"
    assert learned.saw(1.9) is None, "still the floor"
    assert learned.saw(4.0) == 20.0
    assert learned.saw(3.0) is None, "one quick step does not lower it again"
    assert learned.saw(30.0) == 100.0, "never above step_section_timeout_s"


def test_a_floor_above_the_config_or_no_learning_changes_nothing(tmp_path: Path) -> None:
    for more in ("recovery.step_timeout_floor_s=1000", "recovery.learn_step_timeout=false"):
        learned = limit(tmp_path, more)
        assert [learned.saw(1.0) for _ in range(5)] == [None] * 5


def test_what_was_seen_outlives_the_process_and_is_not_used_for_other_steps(tmp_path: Path) -> None:
    learned = limit(tmp_path)
    for _ in range(3):
        learned.saw(4.0)
    until_written(tmp_path)
    assert limit(tmp_path, rank=1).at_start() == 20.0, "every rank reads it"
    for other in (
        limit(tmp_path, "training.global_batch_size=16"),
        limit(tmp_path, "model.layers=4"),
        limit(tmp_path, world_size=1),
    ):
        assert other.at_start() is None
    (tmp_path / names.STEP_SEEN).write_text("{")
    assert limit(tmp_path).at_start() is None


def test_only_rank_0_writes_and_storage_that_fails_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = limit(tmp_path / "other", rank=1)
    for _ in range(4):
        other.saw(1.0)
    (tmp_path / "file").touch()
    learned = limit(tmp_path / "file" / "run")
    for _ in range(4):
        learned.saw(1.0)
    deadline = time.monotonic() + 10
    while "was not written" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (tmp_path / "other").exists()
