"""`holdfast checkpoint`: one message for bad input, with what to do instead, and no stack trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.config import names
from tests.commands.saved_steps import Said, commit, flip, holdfast

FOR_BOTH = [["verify"], ["export", "--to", "hf"]]


def refused(capsys: Said, *arguments: str) -> str:
    assert main(["checkpoint", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 2, said.err
    return said.err


@pytest.mark.parametrize("action", [["ls"], *FOR_BOTH])
def test_a_folder_that_is_not_there_or_is_empty_is_said(tmp_path: Path, capsys: Said, action: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "it does not exist" in refused(capsys, *action, str(tmp_path / "none"))
    assert "it is empty" in refused(capsys, *action, str(tmp_path / "empty"))


@pytest.mark.parametrize("action", FOR_BOTH)
def test_a_run_without_a_committed_step_is_said_with_what_there_is(
    tmp_path: Path, capsys: Said, action: list[str]
) -> None:
    (tmp_path / names.CHECKPOINTS).mkdir()
    assert "no step has been saved in it" in refused(capsys, *action, str(tmp_path))
    (commit(tmp_path, 30) / names.COMMITTED).unlink()
    text = refused(capsys, *action, str(tmp_path))
    assert "no step in it is committed; unfinished or torn: step-00000030" in text


@pytest.mark.parametrize("action", FOR_BOTH)
def test_a_step_that_is_not_there_lists_those_that_are(tmp_path: Path, capsys: Said, action: list[str]) -> None:
    commit(tmp_path, 20)
    commit(tmp_path, 30)
    text = refused(capsys, *action, str(tmp_path), "--step", "25")
    assert "--step = 25: " in text and "has no such committed step. Name one of 20, 30." in text


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "much"])
def test_a_shard_size_that_is_none_is_a_bad_option(tmp_path: Path, value: str) -> None:
    done = holdfast("export", str(tmp_path), "--to", "hf", f"--max-shard-gb={value}")
    assert done.returncode == 2
    assert f"'{value}' is not a number above 0" in done.stderr


def test_export_passes_the_answer_of_its_process_on(tmp_path: Path) -> None:
    commit(tmp_path, 30)  # its files are no tensors
    flip(tmp_path / names.CHECKPOINTS / names.step_folder(30) / "state.json", 5)
    done = holdfast("export", str(tmp_path), "--to", str(tmp_path / "hf"))
    assert done.returncode == 1
    _, problem = done.stderr.splitlines()
    assert "step = 30: step-00000030/state.json: block 0 (from byte 0) has another checksum" in problem
    assert not (tmp_path / "hf").exists()
