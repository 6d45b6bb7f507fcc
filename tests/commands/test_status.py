"""`holdfast status DIR`: what it says can be done, which differs between a machine at hand and a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.commands.status import summary
from holdfast.config import names
from holdfast.goodput.state import Status, read_status
from holdfast.run_directory import RunDirectory, Terminal, write_atomically
from holdfast.terminal import terminal_id
from tests.goodput.builder import Run, end, train

TERMINAL = Terminal(93, "the same exception at step 7 on 3 attempts", rank=1, step=7)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory as on a cluster, <storage>/runs/<name>, whose owner has ended."""
    path = tmp_path / "out" / "fsx" / "runs" / "mine"
    RunDirectory(path).take(nodes=2, job="demo", jobset_attempt=0, pod="control-0", lease_s=0.2)
    RunDirectory(path).release(1)
    return path


@pytest.fixture
def out(run_dir: Path, tmp_path: Path) -> Path:
    """The --out folder of `holdfast run` around it."""
    folder = tmp_path / "out"
    (folder / "profile.yaml").write_text("name: mine\n")
    (folder / "run").symlink_to(run_dir.relative_to(folder))
    return folder


def state_of(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What stands at `state`, in one line."""
    assert main(["status", str(directory)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 250
    return " ".join(said.partition("\nstep ")[0].split())


def test_a_dead_run_on_this_machine_is_resumed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = state_of(out, capsys)
    assert said.endswith(f"no live process owns it to go on: holdfast resume {out}")
    assert said == state_of(out / "run", capsys)


def test_a_terminal_run_on_this_machine_is_resumed_with_its_record_cleared(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDirectory(out / "run").write_terminal(TERMINAL)
    said = state_of(out, capsys)
    assert said.endswith(f"to go on, when the cause is mended: holdfast resume {out} --clear-terminal")
    assert "cluster" not in said and "clear_terminal" not in said


def test_a_dead_run_on_a_cluster_is_not_said_to_be_resumable_by_hand(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = state_of(run_dir, capsys)
    assert "on a cluster Kubernetes starts it again while its JobSet lives (kubectl get jobset)" in said
    assert said.endswith("delete it and apply job again") and "holdfast resume" not in said


def test_a_terminal_run_on_a_cluster_is_cleared_in_the_profile(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDirectory(run_dir).write_terminal(TERMINAL)
    said = state_of(run_dir, capsys)
    assert f'resume: {{clear_terminal: "{terminal_id(TERMINAL)}"}} in the profile, then delete the JobSet' in said
    assert "holdfast resume" not in said


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (names.TERMINAL, '{"code": "x", "reason": 5}', "terminal (93): 5"),
        (f"{names.ATTEMPTS}/g1-c0.death0.json", '{"rank": null, "code": -9}', "rank 0 before its first step of g1-c0"),
    ],
)
def test_a_record_with_odd_content_is_shown(
    name: str, content: str, says: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_atomically(run_dir / name, content)
    assert main(["status", str(run_dir)]) == 0
    assert says in capsys.readouterr().out


def rows(status: Status, run_dir: Path) -> dict[str, str]:
    return dict(summary(status, run_dir, None))


def test_of_a_log_of_another_version_nothing_is_said_to_be_known(run_dir: Path) -> None:
    unknown: dict[str, Any] = {"goodput": None, "step": None, "attempt": None}
    said = rows(replace(read_status(run_dir), **unknown), run_dir)
    assert said["goodput"] == "not known: the log is of another version of Holdfast"
    assert (said["step"], said["attempt"]) == ("not known", "not known")


def test_a_goodput_of_nothing_is_known(run_dir: Path) -> None:
    said = rows(replace(read_status(run_dir), goodput=0.0), run_dir)
    assert (said["goodput"], said["step"], said["attempt"]) == ("0.0%", "none yet", "none yet")


def test_half_a_character_in_a_log_does_not_end_status_or_report(
    run_dir: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = Run(run_dir)
    logs = run.ranks(0)
    train(logs, 1, 1, 3)
    logs[0].point(5, "save_failed", step=3, error="no such file: \udcff")
    end(logs, 6, "complete")
    run.close()
    for command in ("status", "report"):
        assert main([command, str(run_dir)]) == 0
        assert b"no such file: \\udcff" in capsysbinary.readouterr().out
