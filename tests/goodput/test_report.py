"""`holdfast report` and `holdfast status`, as a person calls them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from holdfast.cli import main
from holdfast.config import dump, load_profile, names
from holdfast.goodput import events
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.state import read_status
from holdfast.run_directory import RunDirectory, Terminal, write_atomically
from tests.goodput.builder import Machine, Run, begin, end, train


def broken_and_restarted(run: Run) -> None:
    """An in-job restart from step 4 after step 6, with a failed save and a torn log."""
    supervisor = run.process(0, "supervisor", pod="worker-0", role="worker")
    supervisor.point(0, "pod_start")
    logs = run.ranks(1)
    begin(logs, 2)
    train(logs, 3, 1, 6)
    logs[0].point(8, "commit", step=4)
    logs[0].point(8.5, "save_failed", step=6, error="[Errno 28] No space left on device <fsx>")
    logs[1].point(9, "fault", id="rank_sigkill-rank1-step7", kind="rank_sigkill", rank=1, step=7)
    supervisor.point(9.5, "launcher_event", event="failure_detected", cycle=1)
    new = run.ranks(12, cycle=1)
    for log in new:
        log.span(13, 15, "import")
        log.span(15, 16, "restore", step=4)
    train(new, 16, 5, 8)
    end(new, 20, "complete")
    logs[1].path.write_bytes(logs[1].path.read_bytes() + b'{"t":50')


def test_the_text_report_shows_buckets_recoveries_parts_saves_and_doubts(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_and_restarted(run)
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert re.search(r"goodput 40\.0% \(8\.00 s productive of 20\.00 s\); 2 ranks, 8 steps, 2 attempts", text)
    assert re.search(r"lost_work +2\.00 +10\.0%", text)
    assert re.search(r"rank_sigkill, rank 1, step 7 +in_job +0\.50 +8\.00 +2", text)
    assert re.search(r"rank_sigkill, rank 1, step 7 +0\.50 +- +2\.50 +3\.00 +- +- +1\.00 +1\.00 +8\.00", text)
    assert "1 committed, the last at step 4; 1 failed" in text
    assert "[Errno 28] No space left on device <fsx>" in text
    assert "the last line is cut off" in text
    assert max(map(len, text.splitlines())) <= 200


@pytest.mark.parametrize(("schema", "says"), [(7, "has schema 7"), (None, "has schema None")])
def test_a_log_of_another_version_is_refused_with_one_message(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], schema: int | None, says: str
) -> None:
    with patch.object(events, "SCHEMA", schema):
        train(run.ranks(0), 0, 1, 3)
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count(says), "Traceback" in said.err) == ("", 1, False)
    assert "Use the version of holdfast that wrote it" in said.err


def test_the_text_report_says_what_each_figure_is(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken_and_restarted(run)
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"total job time +20\.00 s", text)
    assert re.search(r"goodput +43\.8% +productive share of the time after the first finished step", text)
    assert re.search(r"mfu +not applicable", text)
    assert re.search(r"article_infra_goodput +65\.0% +the article's: \(T - downtime\) / T", text)


def test_the_json_report_has_every_bucket_and_adds_up(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_and_restarted(run)
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["buckets"]) == list(BUCKETS)
    assert sum(report["buckets"].values()) == pytest.approx(report["wall_s"], abs=1e-9)
    (recovery,) = report["recoveries"]
    assert (recovery["kind"], recovery["layer"], recovery["lost_steps"]) == ("rank_sigkill", "in_job", 2)
    assert report["checkpoints"]["committed"] == [4]
    assert [anomaly["kind"] for anomaly in report["anomalies"]] == ["torn_line"]


def test_the_breakdown_is_a_markdown_table_of_the_in_job_restarts(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_and_restarted(run)
    assert main(["report", str(tmp_path), "--breakdown-markdown"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| fault | noticed | stopped | started | imported | group | model | restored | first step | total |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| rank_sigkill, rank 1, step 7 | 0.50 | - | 2.50 | 3.00 | - | - | 1.00 | 1.00 | 8.00 |",
    ]


def test_case_33_report_of_a_run_whose_wall_clock_jumped_exits_0_with_a_warning(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(run.ranks(0), 1, 1, 5)
    late = [run.rank(rank, 8, cycle=1, machine=Machine(wall=Machine().wall - 300)) for rank in range(2)]
    train(late, 10, 6, 10)
    end(late, 15, "complete")
    assert main(["report", str(tmp_path)]) == 0
    assert "the wall clock is -300.0 s from that of other processes" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["report", "status"])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "it does not exist"),
        (lambda path: path.mkdir(), "it is empty"),
        (lambda path: path.write_text("x"), "it is not a folder"),
        (lambda path: (path / "photos").mkdir(parents=True), "no run has left anything in it"),
    ],
)
def test_a_folder_without_a_run_is_one_clear_message_and_code_2(
    command: str, make: object, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    make(tmp_path / "out")
    assert main([command, str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"DIR = '{tmp_path / 'out'}': {why}" in error
    assert "Traceback" not in error


def test_a_report_on_a_run_that_has_logged_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    assert main(["report", str(tmp_path)]) == 2
    assert "no event has been logged in it" in capsys.readouterr().err


def test_a_table_without_an_in_job_restart_or_a_page_that_cannot_be_written_is_code_2(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(run.ranks(0), 1, 1, 2)
    assert main(["report", str(tmp_path), "--breakdown-markdown"]) == 2
    assert "no in-job restart" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "no" / "x.html")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err


def take(run_dir: Path) -> RunDirectory:
    """The run directory, owned by this test's process."""
    directory = RunDirectory(run_dir)
    directory.take(nodes=2, job="demo", jobset_attempt=0, pod="control-0", lease_s=0.2)
    write_atomically(run_dir / names.RUN_YAML, dump(load_profile("cpu-test")))
    return directory


def status_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["status", str(tmp_path)]) == 0
    return capsys.readouterr().out


def test_status_shows_state_step_checkpoint_owner_and_news(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_and_restarted(run)
    take(run.path)
    marker = run.path / names.CHECKPOINTS / names.step_folder(4) / names.COMMITTED
    write_atomically(marker, json.dumps({"step": 4}))
    (run.path / names.CHECKPOINTS / names.step_folder(6)).mkdir()  # torn: has no marker
    text = status_of(tmp_path, capsys)
    assert re.search(r"^state +running$", text, re.M)
    assert re.search(r"^step +8 of 20$", text, re.M)
    assert re.search(r"^attempt +g1-c1-r0$", text, re.M)
    assert re.search(r"^committed +step 4, .* ago$", text, re.M)
    assert re.search(rf"^owner +generation 1, host \S+, pod control-0, pid {os.getpid()}$", text, re.M)
    assert re.search(r"ago +rank 1 +fault id=rank_sigkill-rank1-step7", text)
    assert len(text.splitlines()) <= 24


def test_a_status_believes_nothing_of_a_log_of_another_version_and_all_that_is_not_in_the_log(run: Run) -> None:
    with patch.object(events, "SCHEMA", 7):
        broken_and_restarted(run)
    take(run.path)
    marker = run.path / names.CHECKPOINTS / names.step_folder(4) / names.COMMITTED
    write_atomically(marker, json.dumps({"step": 4}))
    status = read_status(run.path)
    assert (status.goodput, status.step, status.attempt) == (None, None, None)
    assert (status.committed_age_s, status.news) == (None, ())
    assert (status.state, status.committed, status.steps) == ("running", 4, 20)


def test_status_of_a_run_whose_owner_has_ended_is_dead(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    take(run.path).release(1)
    assert "dead: neither complete nor terminal" in status_of(tmp_path, capsys)


def test_status_of_a_terminal_run_gives_the_reason_and_the_way_on(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    take(run.path).write_terminal(Terminal(93, "the same exception at step 7 on 3 attempts", rank=1, step=7))
    text = status_of(tmp_path, capsys)
    assert "terminal (93): the same exception at step 7 on 3 attempts" in text
    assert f"holdfast resume {tmp_path} --clear-terminal" in text


def test_status_of_a_complete_run_is_complete(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    take(run.path).write_complete(step=20)
    assert re.search(r"^state +complete$", status_of(tmp_path, capsys), re.M)
