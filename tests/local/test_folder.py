"""A folder has one owner, who finds nothing alive from the owner before."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.config.problems import ConfigError
from holdfast.local import RunFolder
from holdfast.local.processes import TOKEN_VARIABLE


def test_a_second_owner_is_refused_with_host_pid_and_age(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out"), pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path / "out")
    assert f"host {os.uname().nodename}, pid {os.getpid()}, for 0 s" in str(caught.value)


def test_the_folder_is_free_again_when_its_owner_has_closed_it(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder(tmp_path / "out").close()


def test_what_a_killed_run_left_is_ended_and_removed_but_logs_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = RunFolder(out)
    alias = first.layout.alias
    for name in ("pods/logs", "pods/toy-x/scratch"):
        (out / name).mkdir(parents=True)
    (out / "pods/logs/toy-x.log").write_text("kept")
    # What a SIGKILL of the runner does: the lock is gone, nothing was tidied.
    record = (out / "run.lock").read_text()
    first.close()
    alias.mkdir()
    (out / "run.lock").write_text(record)
    stray = subprocess.Popen(["sleep", "60"], env={TOKEN_VARIABLE: f"{json.loads(record)['token']}.toy-x"})
    with RunFolder(out):
        assert stray.wait(5) == -9
        assert not (out / "pods/toy-x").exists() and not alias.exists()
        assert (out / "pods/logs/toy-x.log").read_text() == "kept"


def test_a_folder_with_files_that_are_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="files that no run has made"):
        RunFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="--out"):
        RunFolder(tmp_path / "file")


def test_a_broken_lock_record_does_not_lock_anyone_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    RunFolder(out).close()
    (out / "run.lock").write_text("{")
    RunFolder(out).close()
