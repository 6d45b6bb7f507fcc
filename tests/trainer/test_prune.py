"""Prune: what retention keeps stays, what readers hold stays, and a removal that is cut short anywhere is finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import lineage
from holdfast.checkpoint_folder import FileRecord, Marker, damage, look, read_marker
from holdfast.config import RunConfig, load_profile, names
from holdfast.leases import Lease
from holdfast.lineage import StaleAttempt
from holdfast.run_directory import RunDirectory, StaleGeneration
from trainer.checkpoint.prune import prune, remove_partials, room_for, set_newer_aside, superseded
from trainer.runtime import Attempt

FIRST, SECOND = Attempt(1, 0, 0), Attempt(1, 1, 0)


def keep(last: int = 2, every: int | None = None) -> Any:
    """Retention options."""
    options = [f"checkpoint.keep_last={last}"] + ([f"checkpoint.keep_every_steps={every}"] if every else [])
    config: RunConfig = load_profile("cpu-test", options)
    return config.checkpoint


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that FIRST has begun from step 0."""
    run = RunDirectory(tmp_path / "run")
    run.take(nodes=1, job="job", jobset_attempt=0, pod="pod", lease_s=0.1)
    lineage.begin(run, str(FIRST), 1)
    lineage.started(run, str(FIRST), 0)
    return run


def commit(run: RunDirectory, *steps: int, attempt: Attempt = FIRST) -> None:
    """Committed steps of three files."""
    for step in steps:
        folder = run.checkpoints / names.step_folder(step)
        folder.mkdir(parents=True)
        records = [FileRecord.of_content(name, name.encode() * step) for name in ("a.distcp", "b.distcp", "state.json")]
        for record in records:
            (folder / record.name).write_bytes(record.name.encode() * step)
        (folder / names.COMMITTED).write_text(Marker(step, str(attempt), 1, 1, tuple(records)).text())


def unfinished(run: RunDirectory, *folders: str) -> None:
    """What died saves leave."""
    for name in folders:
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "a.distcp").write_text("half")


def there(run: RunDirectory) -> list[str]:
    """Folders of steps, committed or not."""
    return sorted(path.name for path in run.checkpoints.glob("step-*"))


def prune_as(run: RunDirectory, attempt: Attempt = FIRST, memory: dict[str, Any] | None = None, **options: Any) -> None:
    """Prune, by default with keep_last=2."""
    prune(run, keep(**options), 1, str(attempt), {} if memory is None else memory)


def test_the_last_ones_and_the_multiples_are_kept() -> None:
    assert superseded((5, 10, 15, 20, 25), keep(2)) == [5, 10, 15]
    assert superseded((5, 10, 15, 20, 25), keep(2, every=10)) == [5, 15]
    assert superseded((5, 10), keep(2)) == []
    assert superseded((), keep(2)) == []


def test_prune_leaves_what_is_kept_whole_and_nothing_of_the_rest(run: RunDirectory) -> None:
    commit(run, 5, 10, 15, 20, 25)
    prune_as(run, every=10)
    assert look(run.checkpoints).committed == (10, 20, 25)
    assert there(run) == ["step-00000010", "step-00000020", "step-00000025"]
    for step in (10, 20, 25):
        marker = read_marker(run.checkpoints / names.step_folder(step))
        assert marker is not None
        assert not list(damage(run.checkpoints / names.step_folder(step), marker.files, marker.block_bytes))


def test_leftovers_below_the_newest_commit_go_and_a_save_in_flight_stays(run: RunDirectory) -> None:
    commit(run, 10, 20)
    unfinished(run, "step-00000015", "step-00000015.g1-c0-r0-s3.partial", "step-00000030.g1-c0-r0-s6.partial")
    prune_as(run)
    assert there(run) == ["step-00000010", "step-00000020", "step-00000030.g1-c0-r0-s6.partial"]


def test_a_step_whose_marker_cannot_be_read_is_never_deleted_and_only_set_aside(run: RunDirectory) -> None:
    commit(run, 5, 10, 15, 20, 25)
    for step in (5, 15, 25):
        os.truncate(run.checkpoints / names.step_folder(step) / names.COMMITTED, 20)
    prune_as(run)
    assert there(run) == [names.step_folder(step) for step in (5, 10, 15, 20, 25)]
    commit(run, 30)
    prune_as(run)
    assert there(run) == [names.step_folder(step) for step in (5, 15, 20, 25, 30)]
    lineage.begin(run, str(SECOND), 1)
    assert remove_partials(run, SECOND) == []
    moved = set_newer_aside(run, 20, SECOND)
    assert moved == [str(run.path / "aside/g1-c1-r0" / names.step_folder(step)) for step in (25, 30)]
    assert there(run) == [names.step_folder(step) for step in (5, 15, 20)]
    assert sorted(path.name for path in (run.path / "aside/g1-c1-r0/step-00000025").iterdir()) == [
        names.COMMITTED,
        "a.distcp",
        "b.distcp",
        "state.json",
    ]


@pytest.mark.parametrize(("named", "step", "then"), [(15, 10, 10), (10, 10, 10), (15, 0, None)])
def test_the_pointer_never_names_a_step_that_was_set_aside(
    run: RunDirectory, named: int, step: int, then: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run, 5, 10, 15)
    pointer = run.checkpoints / names.LATEST
    pointer.write_text(names.step_folder(named))
    lineage.begin(run, str(SECOND), 1)
    rename, seen = Path.rename, []

    def watched(self: Path, target: Path) -> Path:
        done = rename(self, target)
        if pointer.exists():
            seen.append((run.checkpoints / pointer.read_text() / names.COMMITTED).exists())
        return done

    monkeypatch.setattr(Path, "rename", watched)
    set_newer_aside(run, step, SECOND)
    assert all(seen)
    assert (pointer.read_text() if pointer.exists() else None) == (then and names.step_folder(then))


def test_with_nothing_committed_nothing_is_removed(run: RunDirectory) -> None:
    unfinished(run, "step-00000005", "step-00000010.g1-c0-r0-s2.partial")
    prune_as(run)
    assert there(run) == ["step-00000005", "step-00000010.g1-c0-r0-s2.partial"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _killed_before(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before the number-th change of the file system."""
    left = [number]
    for name in ("unlink", "rmdir", "rename", "replace", "link"):
        really = getattr(os, name)

        def change(*args: Any, really: Any = really, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return really(*args, **kwargs)

        monkeypatch.setattr(os, name, change)


def test_a_prune_that_is_killed_anywhere_tears_no_committed_step_and_the_next_one_finishes(
    run: RunDirectory, tmp_path: Path
) -> None:
    commit(run, 5, 10, 15, 20, 25)
    unfinished(run, "step-00000012", "step-00000022.g1-c0-r0-s9.partial")
    kills, finished = 0, False
    while not finished:
        case = RunDirectory(Path(shutil.copytree(run.path, tmp_path / str(kills))))
        with pytest.MonkeyPatch.context() as patch:
            _killed_before(kills, patch)
            try:
                prune_as(case, every=10)
                finished = True
            except Killed:
                kills += 1
        committed = look(case.checkpoints).committed
        assert {10, 20, 25} <= set(committed)
        for step in committed:
            marker = read_marker(case.checkpoints / names.step_folder(step))
            assert marker is not None
            assert not list(damage(case.checkpoints / names.step_folder(step), marker.files, marker.block_bytes))
        prune_as(case, every=10)
        assert there(case) == ["step-00000010", "step-00000020", "step-00000025"]
    assert kills == 14  # 4 files and a folder for each of two steps, a file and a folder for each of two leftovers


def test_a_step_that_a_reader_holds_survives_until_the_prune_after_it_has_ended(run: RunDirectory) -> None:
    commit(run, 5, 10, 15)
    memory: dict[str, Any] = {}
    with Lease(run.checkpoints, 5, "export"):
        prune_as(run, memory=memory)
        assert look(run.checkpoints).committed == (5, 10, 15)
    prune_as(run, memory=memory)
    assert look(run.checkpoints).committed == (10, 15)


def test_a_reader_that_comes_while_the_marker_goes_keeps_the_files(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the marker already. Later readers find none."""
    commit(run, 5, 10, 15)
    lease, really = Lease(run.checkpoints, 5, "export"), os.unlink

    def unlink(path: Any, **kwargs: Any) -> None:
        if str(path).endswith(f"step-00000005/{names.COMMITTED}"):
            lease.__enter__()
        really(path, **kwargs)

    monkeypatch.setattr(os, "unlink", unlink)
    folder = run.checkpoints / "step-00000005"
    marker = read_marker(folder)
    assert marker is not None
    for _ in range(2):
        prune_as(run)
        assert not list(damage(folder, marker.files, marker.block_bytes))
        assert look(run.checkpoints).committed == (10, 15)
    lease.__exit__()
    prune_as(run)
    assert there(run) == ["step-00000010", "step-00000015"]


def test_an_aborted_attempt_removes_nothing(run: RunDirectory) -> None:
    commit(run, 5, 10, 15)
    unfinished(run, "step-00000012.g1-c0-r0-s3.partial")
    lineage.begin(run, str(SECOND), 1)
    before = there(run)
    with pytest.raises(StaleAttempt, match="g1-c0-r0 was aborted: g1-c1-r0 is the current one"):
        prune_as(run, FIRST)
    with pytest.raises(StaleAttempt):
        remove_partials(run, FIRST)
    with pytest.raises(StaleAttempt):
        set_newer_aside(run, 5, FIRST)
    run.take(nodes=1, job="job", jobset_attempt=1, pod="newer", lease_s=0.1)
    with pytest.raises(StaleGeneration):
        prune_as(run, SECOND)
    assert there(run) == before


def test_an_attempt_that_is_aborted_in_the_middle_stops_before_the_next_removal(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run, 5, 10, 15, 20)
    really = shutil.rmtree

    def rmtree(path: Path, **kwargs: Any) -> None:
        really(path, **kwargs)
        lineage.begin(run, str(SECOND), 1)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(StaleAttempt):
        prune_as(run)
    assert look(run.checkpoints).committed == (10, 15, 20)


def test_a_late_commit_of_an_aborted_attempt_does_not_push_out_what_restore_can_use(run: RunDirectory) -> None:
    """FIRST committed 30 after SECOND had gone on from 10."""
    commit(run, 5, 10)
    lineage.begin(run, str(SECOND), 1)
    lineage.started(run, str(SECOND), 10)
    commit(run, 12, attempt=SECOND)
    commit(run, 30, attempt=FIRST)
    prune_as(run, SECOND)
    assert look(run.checkpoints).committed == (10, 12, 30)


def test_partials_of_other_attempts_go_at_the_start_of_an_attempt(run: RunDirectory) -> None:
    unfinished(run, "step-00000015.g1-c0-r0-s3.partial", "step-00000020.g1-c1-r0-s1.partial", "step-00000010")
    lineage.begin(run, str(SECOND), 1)
    assert remove_partials(run, SECOND) == ["step-00000015.g1-c0-r0-s3.partial"]
    assert there(run) == ["step-00000010", "step-00000020.g1-c1-r0-s1.partial"]


def test_there_is_room_or_the_message_says_what_is_needed_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10 << 30
    space = os.statvfs(tmp_path)
    fields = [*space[:1], 4096, *space[2:4], free // 4096, *space[5:]]
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    assert room_for(tmp_path / "not" / "there" / "yet", 8 << 30, 2.0) is None
    message = room_for(tmp_path / "not" / "there" / "yet", (8 << 30) + 1, 2.0)
    assert message is not None
    for part in (
        f"{tmp_path}: 10.74 GB are free",
        "takes 8.59 GB",
        "checkpoint.reserve_gib=2",
        "lower checkpoint.keep_last",
    ):
        assert part in message


def test_pruning_needs_no_torch() -> None:
    code = "import sys, trainer.checkpoint.prune; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
