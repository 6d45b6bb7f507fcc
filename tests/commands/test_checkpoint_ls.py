"""`holdfast checkpoint ls`: what it says of each state that a save can be in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint_folder import damage
from holdfast.cli import main
from holdfast.commands import checkpoint_ls
from holdfast.commands.checkpoint_ls import saves_of
from holdfast.commands.checkpoint_steps import size_text
from holdfast.config import names
from holdfast.leases import Lease
from tests.commands.saved_steps import ROOT, Said, commit


def test_ls_shows_a_committed_step_with_size_ranks_attempt_and_the_pointer(tmp_path: Path) -> None:
    commit(tmp_path, 20)
    commit(tmp_path, 30, world_size=4)
    saves = list(saves_of(tmp_path))
    facts = [(save.step, save.state, save.bytes, save.world_size, save.attempt, save.latest) for save in saves]
    assert facts == [
        (20, "committed", 2 * 10_500 + 1800, 2, "g1-c0-r0", False),
        (30, "committed", 4 * 10_500 + 1800, 4, "g1-c0-r0", True),
    ]
    assert all(save.age_s is not None and 0 <= save.age_s < 3600 for save in saves)


def without_marker(folder: Path) -> None:
    (folder / names.COMMITTED).unlink()


def with_a_torn_marker(folder: Path) -> None:
    text = (folder / names.COMMITTED).read_text()
    (folder / names.COMMITTED).write_text(text[: len(text) // 2])


def of_another_step(folder: Path) -> None:
    (folder / names.COMMITTED).write_text((folder / names.COMMITTED).read_text().replace('"step": 30', '"step": 31'))


def of_another_schema(folder: Path) -> None:
    (folder / names.COMMITTED).write_text('{"step": 30, "attempt": "g1-c0-r0", "generation": 1, "files": []}')


@pytest.mark.parametrize("tear", [without_marker, with_a_torn_marker, of_another_step, of_another_schema])
def test_ls_calls_a_step_without_a_valid_marker_torn(tmp_path: Path, tear: Callable[[Path], None]) -> None:
    tear(commit(tmp_path, 30))
    (save,) = saves_of(tmp_path)
    assert (save.step, save.state) == (30, "torn")
    assert save.note and save.bytes > 0


def test_ls_shows_an_unfinished_save_with_its_attempt_and_what_it_has_written(tmp_path: Path) -> None:
    folder = tmp_path / names.CHECKPOINTS / "step-00000040.g2-c1-r0-s3.partial"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"x" * 1234)
    (save,) = saves_of(tmp_path)
    assert (save.step, save.state, save.bytes, save.attempt) == (40, "unfinished", 1234, "g2-c1-r0")


def test_ls_shows_what_was_set_aside_after_all_others(tmp_path: Path) -> None:
    commit(tmp_path, 20)
    aside = tmp_path / names.ASIDE / "g2-c0-r0"
    aside.mkdir(parents=True)
    commit(tmp_path, 10).rename(aside / names.step_folder(10))
    assert [(save.step, save.state) for save in saves_of(tmp_path)] == [(20, "committed"), (10, "aside")]


@pytest.mark.parametrize("size", [None, 0, 10_499])
def test_ls_calls_a_committed_step_with_a_lost_or_cut_file_damaged(tmp_path: Path, size: int | None) -> None:
    path = commit(tmp_path, 30) / "__1_0.distcp"
    os.truncate(path, size) if size is not None else path.unlink()
    (save,) = saves_of(tmp_path)
    assert save.state == "damaged"
    assert save.note.startswith("__1_0.distcp: ")


def test_ls_does_not_call_a_step_damaged_that_retention_is_deleting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = commit(tmp_path, 30)

    def after_the_marker_was_read(*arguments: Any, **options: Any) -> list[str]:
        (folder / names.COMMITTED).unlink()
        (folder / "__0_0.distcp").unlink()
        return list(damage(*arguments, **options))

    monkeypatch.setattr(checkpoint_ls, "damage", after_the_marker_was_read)
    assert [(save.step, save.state) for save in saves_of(tmp_path)] == [(30, "torn")]


def test_ls_names_who_reads_a_step(tmp_path: Path) -> None:
    commit(tmp_path, 20)
    commit(tmp_path, 30)
    with Lease(tmp_path / names.CHECKPOINTS, 20, "checkpoint export"):
        leased = {save.step: save.leased_by for save in saves_of(tmp_path)}
    assert leased == {20: (f"checkpoint export (host {os.uname().nodename}, pid {os.getpid()})",), 30: ()}


def test_ls_prints_a_line_per_step_the_sum_and_the_free_space(tmp_path: Path, capsys: Said) -> None:
    commit(tmp_path, 20)
    commit(tmp_path, 30)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    head, first, second, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "state", "size", "age", "ranks", "attempt"]
    assert first.split()[:4] == ["20", "committed", "22.8", "kB"]
    assert second.split()[-3:] == ["2", "g1-c0-r0", "LATEST"]
    assert last.startswith("45.6 kB in all; ") and " are free there" in last


def test_ls_prints_json(tmp_path: Path, capsys: Said) -> None:
    commit(tmp_path, 30)
    assert main(["checkpoint", "ls", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [(save["step"], save["state"], save["latest"]) for save in record["saves"]] == [(30, "committed", True)]
    assert record["bytes"] == 22_800
    assert 0 < record["file_system"]["free_bytes"] <= record["file_system"]["bytes"]


def test_ls_takes_the_folder_that_holdfast_run_has_made(tmp_path: Path, capsys: Said) -> None:
    commit(tmp_path / "fsx" / "runs" / "mine", 30)
    (tmp_path / "run").symlink_to("fsx/runs/mine")
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert " 30 " in f" {capsys.readouterr().out.splitlines()[1].lstrip()}"


def test_ls_passes_over_a_pointer_that_is_no_text(tmp_path: Path) -> None:
    (commit(tmp_path, 30).parent / names.LATEST).write_bytes(b"\xff\xfe")
    assert [(save.step, save.state, save.latest) for save in saves_of(tmp_path)] == [(30, "committed", False)]


def test_ls_of_a_run_that_has_saved_nothing_says_so(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / names.EVENTS).mkdir()
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "no step has been saved yet" in capsys.readouterr().out


def test_ls_and_verify_import_nothing_heavy(tmp_path: Path) -> None:
    commit(tmp_path, 30)
    code = (
        "import sys; from holdfast.cli import main\n"
        f"for action in ('ls', 'verify'): main(['checkpoint', action, {str(tmp_path)!r}])\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_sizes_are_written_with_one_digit_and_their_unit() -> None:
    sizes = (0, 999, 1000, 999_949, 999_950, 16.8e9, 840e9, 1.2e12)
    assert [size_text(size) for size in sizes] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "16.8 GB", "840.0 GB", "1.2 TB",
    ]  # fmt: skip
