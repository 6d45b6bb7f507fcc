"""Restoring: the newest whole committed checkpoint, agreed by all ranks, at any world size; or a clear refusal."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import lineage
from holdfast.checkpoint_folder import Found, look
from holdfast.config import ConfigError
from holdfast.run_directory import RunDirectory
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config, same

OPTIONS = (
    "checkpoint.interval_steps=5",
    "checkpoint.keep_last=3",
    # No save may fail, however busy the machine is.
    "checkpoint.persist_timeout_s=90",
    "recovery.checkpoint_section_timeout_s=100",
)
pytestmark = pytest.mark.timeout(300)


def _train(rank: int, world: int, run_dir: str, last: int) -> dict[str, Any]:
    session = Session(run_dir, config(*OPTIONS, world_size=world), rank, world)
    session.checkpoints.restore()
    session.steps(1, last)
    session.settle()
    session.close()
    assert {last - 10, last - 5, last} <= set(session.committed()), session.events("save_failed")
    return session.whole()


def _resume(rank: int, world: int, run_dir: str, cycle: int, overrides: list[str], hide: int | None, last: int) -> Any:
    """Resume and train on; the answer is (restored step, tensors then, skipped messages, tensors at `last`) or the
    error.
    """
    from trainer.checkpoint import restore

    if hide is not None and rank == 1:
        seen = look

        def short_sighted(folder: Path) -> Found:
            found = seen(folder)
            return Found(tuple(step for step in found.committed if step != hide), found.unfinished, found.damaged)

        vars(restore)["look"] = short_sighted
    settings = config(*OPTIONS, *overrides, world_size=world)
    session = Session(run_dir, settings, rank, world, cycle)
    try:
        step = session.checkpoints.restore()
    except (restore.NoCheckpoint, ConfigError) as error:
        session.close()
        return f"{type(error).__name__}: {error}"
    restored = session.whole()
    session.steps(step + 1, last)
    session.settle()
    deadline = time.monotonic() + 60  # the writer prunes after the commit
    while last and len(session.committed()) > settings.checkpoint.keep_last and time.monotonic() < deadline:
        time.sleep(0.05)
    session.close()
    return step, restored, session.events("skipped"), session.whole()


def resume(run_dir: Path, world: int, *overrides: str, hide: int | None = None, last: int = 0) -> list[Any]:
    """Run `_resume` on `world` ranks, as the next attempt."""
    cycle = len(lineage.read(RunDirectory(run_dir)))
    return run_ranks(_resume, world, str(run_dir), cycle, list(overrides), hide, last, timeout_s=110)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A run directory with steps 5, 10, 15 committed by two ranks; the tensors at 15, and at 20 of an unbroken run."""
    folder = tmp_path_factory.mktemp("clean")
    (at_15, _) = run_ranks(_train, 2, str(folder), 15, timeout_s=110)
    (at_20, _) = run_ranks(_train, 2, str(tmp_path_factory.mktemp("unbroken")), 20, timeout_s=110)
    return folder, at_15, at_20


@pytest.fixture
def run_dir(clean: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(clean[0], tmp_path / "run"))


def test_training_on_from_a_checkpoint_is_bit_identical_to_an_unbroken_run(clean: Any, run_dir: Path) -> None:
    """case-06."""
    for step, restored, skipped, at_20 in resume(run_dir, 2, last=20):
        assert step == 15
        assert same(restored, clean[1])
        assert same(at_20, clean[2])
        assert skipped == []


@pytest.mark.parametrize("world", [1, 3])
def test_a_checkpoint_of_two_ranks_restores_bit_identical_on_another_number(
    clean: Any, run_dir: Path, world: int
) -> None:
    """case-05."""
    for step, restored, _, _ in resume(run_dir, world, "resume.allow_changes=[training]"):
        assert step == 15
        assert same(restored, clean[1])


def test_torn_and_empty_newer_folders_are_named_skipped_and_replaced(clean: Any, run_dir: Path) -> None:
    """case-01: the run passes step 20 although two wrecks of it lie there."""
    checkpoints = run_dir / "checkpoints"
    shutil.copytree(checkpoints / "step-00000015", checkpoints / "step-00000020")
    (checkpoints / "step-00000020" / "COMMITTED.json").unlink()
    next((checkpoints / "step-00000020").glob("*.distcp")).unlink()
    (checkpoints / "step-00000025").mkdir()
    (checkpoints / "step-00000020.g1-c0-r0-s9.partial").mkdir()
    (first, _, skipped, at_20), (second, *_) = resume(run_dir, 2, last=20)
    assert first == second == 15
    assert {event["folder"] for event in skipped} == {
        "step-00000020",
        "step-00000025",
        "step-00000020.g1-c0-r0-s9.partial",
    }
    assert same(at_20, clean[2])
    assert (checkpoints / "step-00000020" / "COMMITTED.json").exists()


def test_a_checkpoint_that_one_rank_does_not_see_is_used_by_none(run_dir: Path) -> None:
    """case-01, second input."""
    (first, _, skipped, _), (second, *_) = resume(run_dir, 2, hide=15)
    assert first == second == 10
    assert [(event["folder"], event["why"]) for event in skipped] == [("step-00000015", "not every rank sees it")]


def _flip_a_byte(folder: Path) -> None:
    file = sorted(folder.glob("*.distcp"))[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_byte_makes_all_ranks_fall_back_to_the_previous_checkpoint(run_dir: Path) -> None:
    _flip_a_byte(run_dir / "checkpoints/step-00000015")
    (first, _, skipped, _), (second, *_) = resume(run_dir, 2)
    assert first == second == 10
    assert [event["why"] for event in skipped] == ["block 0 (from byte 0) has another checksum than was committed"]


def test_when_every_committed_checkpoint_is_damaged_the_run_does_not_start_again_at_step_0(run_dir: Path) -> None:
    for folder in (run_dir / "checkpoints").glob("step-*"):
        _flip_a_byte(folder)
    for message in resume(run_dir, 2):
        assert message.startswith("NoCheckpoint: ")
        assert "3 committed checkpoint(s), none of which can be used" in message
        assert "will not start again at step 0" in message


def test_a_step_that_does_not_exist_is_refused_with_those_that_do(run_dir: Path) -> None:
    """case-04."""
    for message in resume(run_dir, 2, "resume.step=12"):
        assert message == "NoCheckpoint: resume.step = 12: no such committed step. There are: 5, 10, 15."


def test_going_back_to_an_older_step_keeps_the_newer_ones_aside_and_happens_once(clean: Any, run_dir: Path) -> None:
    """The job's own restarts must not go back again, and the abandoned branch must not count as the newest."""
    first = resume(run_dir, 2, "resume.step=5", last=12)
    assert [step for step, *_ in first] == [5, 5]
    aside = {path.name for path in run_dir.glob("aside/*/step-*")}
    assert aside == {"step-00000010", "step-00000015"}
    again = resume(run_dir, 2, "resume.step=5", last=20)
    assert [step for step, *_ in again] == [10, 10]
    assert same(again[0][3], clean[2])


def test_a_damaged_checkpoint_is_set_aside_so_that_retention_does_not_count_it(run_dir: Path) -> None:
    for step in (10, 15):
        _flip_a_byte(run_dir / f"checkpoints/step-{step:08d}")
    resume(run_dir, 2, "checkpoint.keep_last=2", "checkpoint.interval_steps=2", last=8)
    kept = sorted(path.parent.name for path in run_dir.glob("checkpoints/*/COMMITTED.json"))
    assert kept == ["step-00000006", "step-00000008"]
    assert {path.name for path in run_dir.glob("aside/*/step-*")} == {"step-00000010", "step-00000015"}


def test_must_resume_refuses_an_empty_folder(tmp_path: Path) -> None:
    """case-04."""
    (message,) = resume(tmp_path, 1, "resume.must_resume=true")
    assert message.startswith("NoCheckpoint: resume.must_resume:")
    assert "it is empty" in message


def test_a_changed_experiment_is_refused_with_the_differing_keys(run_dir: Path) -> None:
    (message, _) = resume(run_dir, 2, "seed=5", "model.layers=3", "training.learning_rate=0.5")
    assert message.startswith("ConfigError: config: 3 problems")
    for line in (
        "seed = 5: the checkpoint was made with 1234",
        "model.layers = 3: the checkpoint was made with 2",
        "training.learning_rate = 0.5: the checkpoint was made with 0.001",
    ):
        assert line in message


def test_a_change_that_is_allowed_is_accepted(run_dir: Path) -> None:
    results = resume(run_dir, 2, "training.learning_rate=0.5", "resume.allow_changes=[training.learning_rate]")
    assert [step for step, *_ in results] == [15, 15]
