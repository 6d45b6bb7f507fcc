"""The bench of the published experiment: its arms are valid jobs with the same faults; it goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import article, article_job, article_page, document, json_lines
from bench.article import ARMS, FAULTS, STEPS, config_of, main, missing, parse
from bench.article_job import Ended, Job
from bench.article_rows import MEASURES, is_whole, make_row, result, rows_of
from bench.recovery_page import SHARED
from holdfast.goodput.ledger import BUCKETS, account
from holdfast.goodput.reader import read_run
from tests.goodput.builder import Run, begin, end, train

GPUS = ["cluster.ranks_per_node=2"]
MACHINES = [("cpu-demo", []), ("gpu-local", GPUS)]


def options(tmp_path: Path, *words: str) -> argparse.Namespace:
    return parse(["--work", str(tmp_path / "work"), "--out", str(tmp_path / "result.json"), *words])


def row(arm: str = "all-on", began: float = 1.0, steps: int = STEPS, recovered_s: float | None = 3.0) -> dict[str, Any]:
    recovery = {"kind": "hang", "rank": 0, "step": 9, "layer": "in_job", "detected_s": 1.0, "lost_steps": 4}
    recovery |= {"calls_between": 0}
    made = {"arm": arm, "began": began, "steps": steps, "faults": 5, "buckets": dict.fromkeys(BUCKETS, 0.0)}
    recoveries = [recovery | {"recovered_s": recovered_s} for _ in FAULTS]
    return made | dict.fromkeys(MEASURES, 0.5) | {"wall_s": 9.0, "calls": 1, "recoveries": recoveries}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("profile", "sets"), MACHINES)
def test_every_arm_is_a_valid_job_that_differs_only_in_recovery(arm: str, profile: str, sets: list[str]) -> None:
    config, full = config_of(arm, profile, sets, STEPS), config_of("all-on", profile, sets, STEPS)
    assert config.model_copy(update={"recovery": full.recovery}) == full
    layers = {"pod-restart": (False, False), "in-process": (True, True), "in-job": (False, True)}
    assert (config.recovery.in_process, config.recovery.in_job) == layers.get(arm, (True, True))
    assert (config.recovery.max_in_job_restarts == 0) is (arm == "in-process")


def test_the_faults_are_the_articles_on_the_ranks_there_are_and_move_with_fewer_steps() -> None:
    whole = config_of("in-job", "gpu-local", GPUS, STEPS).faults
    assert [(fault.kind, fault.step, fault.rank) for fault in whole] == [
        ("exception", 62, 0),
        ("exception", 239, 0),
        ("hang", 574, 0),
        ("exception", 1320, 0),
        ("exception", 1529, 1),
    ]
    tried = config_of("in-job", "cpu-demo", [], 100)
    assert [fault.step for fault in tried.faults] == [3, 11, 28, 66, 76] and tried.training.steps == 100


def test_an_override_counts_above_the_arms_own_limits() -> None:
    config = config_of("all-on", "gpu-local", [*GPUS, "recovery.in_process_soft_timeout_s=4"], STEPS)
    assert config.recovery.in_process_soft_timeout_s == 4


def test_an_arm_is_missing_until_it_has_a_whole_row_of_as_many_steps(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--arms", "all-on", "in-job")
    assert missing(arguments) == ["all-on", "in-job"]
    for made in (row("in-job", 1.0, steps=100), row("in-job", 2.0, recovered_s=None), row("all-on", 3.0)):
        json_lines.append(arguments.raw, made)
    assert missing(arguments) == ["in-job"]
    json_lines.append(arguments.raw, row("in-job", 4.0))
    assert missing(arguments) == []
    assert missing(options(tmp_path, "--arms", "all-on", "--count", "3")) == ["all-on", "all-on"]


def test_rows_are_only_added_a_torn_one_is_none_and_the_same_job_counts_once(tmp_path: Path) -> None:
    raw, former = tmp_path / "raw.jsonl", tmp_path / "former.jsonl"
    json_lines.append(former, row("in-job"))
    json_lines.append(raw, row("in-job"))
    json_lines.append(raw, row("all-on"))
    raw.write_bytes(raw.read_bytes()[:-20])
    before = raw.read_bytes()
    json_lines.append(raw, row("pod-restart"))
    assert raw.read_bytes().startswith(before)
    assert [found["arm"] for found in rows_of([former, raw, tmp_path / "none"])] == ["in-job", "pod-restart"]


@pytest.mark.parametrize(
    "lacking", [{"recoveries": row()["recoveries"][1:]}, {"recoveries": row(recovered_s=None)["recoveries"]}]
)
def test_a_row_with_a_fault_that_never_struck_or_was_not_overcome_is_not_whole(lacking: dict[str, Any]) -> None:
    assert is_whole(row()) and not is_whole(row() | lacking)


def test_a_row_is_what_the_ledger_says(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ranks = [run.rank(rank, 0.0) for rank in range(2)]
    for step in range(1, 11):
        for log in ranks:
            log.span(10.0 + step, 11.0 + step, "step", step=step)
    run.close()
    timeline = read_run(tmp_path)
    ledger = account(timeline)
    made = make_row("all-on", config_of("all-on", "cpu-demo", [], STEPS), timeline, ledger, "abc")
    assert (made["goodput"], made["goodput_total"]) == (ledger.goodput, ledger.goodput_total)
    assert made["buckets"] == dict(ledger.buckets) and sum(made["buckets"].values()) == pytest.approx(made["wall_s"])
    assert made["recovery_keys"]["in_process"] is True and json.dumps(made)
    assert not is_whole(made)  # none of its five faults has struck


def test_a_recovery_that_the_end_of_a_call_cut_in_two_says_so(tmp_path: Path) -> None:
    run, config = Run(tmp_path), config_of("in-job", "cpu-demo", [], 100)
    runner = run.process(0.0, "runner")
    runner.point(0.0, "run_start")
    for cycle, at in ((0, 10.0), (1, 20.0), (2, 60.0)):
        ranks = [run.rank(rank, at, cycle=cycle) for rank in range(2)]
        begin(ranks, at)
        train(ranks, at + 1, 1 + 3 * cycle, 3 + 3 * cycle)
        if cycle < 2:
            fault = config.faults[cycle]
            ranks[0].point(at + 4.5, "fault", id=fault.id, kind=fault.kind, rank=0, step=4 + 3 * cycle)
            end(ranks, at + 5, "exception", error="injected")
    runner.point(50.0, "run_start")
    run.close()
    timeline = read_run(tmp_path)
    made = make_row("in-job", config, timeline, account(timeline), "abc")
    assert [one["calls_between"] for one in made["recoveries"]] == [0, 1] and made["calls"] == 2


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What is run in the place of `holdfast run`; sys.argv[1] is the job's out folder."""
    monkeypatch.setattr(article_job, "command", lambda _, out: [sys.executable, "-c", text, str(out)])


BEGINS = "import pathlib, signal, sys, time; out = pathlib.Path(sys.argv[1]); (out / 'run').mkdir(parents=True)\n"
LEAVES = BEGINS + "signal.signal(15, lambda *_: sys.exit(143)); (out / 'up').touch(); time.sleep(60)"
STAYS = BEGINS + "signal.signal(15, signal.SIG_IGN); (out / 'up').touch(); time.sleep(20); (out / 'late').touch()"


@pytest.mark.parametrize(("text", "code", "patience_s"), [(LEAVES, 143, 30.0), (STAYS, None, 0.2)])
def test_a_job_at_the_deadline_is_asked_to_leave_or_killed_and_goes_on_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int | None, patience_s: float
) -> None:
    script(monkeypatch, text)
    config = config_of("all-on", "cpu-demo", [], 100)
    job = Job(tmp_path / "all-on", config)
    assert not job.prepare()
    limits, wait = [], article_job._wait

    def waited(process: subprocess.Popen[bytes], until: float) -> int | None:
        limits.append(until)
        if len(limits) == 1:  # the deadline comes when the job is up, however slow this machine is
            far = time.monotonic() + 60
            while not (job.out / "up").exists() and time.monotonic() < far:
                time.sleep(0.02)
            return None
        return wait(process, time.monotonic() + patience_s)

    monkeypatch.setattr(article_job, "_wait", waited)
    assert job.run(1000.0) is Ended.CUT_SHORT
    assert (job.out / "up").exists() and not (job.out / "late").exists() and job.code == code
    assert limits == [1000.0 - article_job.STOP_S, 1000.0 - article_job.KILL_S]
    assert Job(tmp_path / "all-on", config).prepare()


def test_a_folder_with_another_config_is_no_job_to_go_on_with(tmp_path: Path) -> None:
    job = Job(tmp_path / "all-on", config_of("all-on", "cpu-demo", [], 100))
    job.prepare()
    (job.out / "run").mkdir(parents=True)
    assert not Job(tmp_path / "all-on", config_of("all-on", "cpu-demo", [], 200)).prepare()
    assert not job.out.exists()


def test_a_job_that_fails_leaves_no_row_and_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, BEGINS + "sys.exit(93)")
    words = ["--work", str(tmp_path), "--out", str(tmp_path / "r.json"), "--arms", "all-on", "--steps", "100"]
    monkeypatch.setattr(sys, "argv", ["article", *words])
    assert main() == 1
    assert not (tmp_path / "rows.jsonl").exists() and not (tmp_path / "all-on").exists()
    assert (tmp_path / "all-on.failed" / "out" / "run").is_dir()
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == []


def test_a_result_is_made_of_rows_without_running_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json_lines.append(tmp_path / "former.jsonl", row("in-job"))
    words = ["--work", str(tmp_path), "--out", str(tmp_path / "r.json"), "--fold-only"]
    monkeypatch.setattr(article, "run", lambda *_: pytest.fail("a job was started"))
    monkeypatch.setattr(sys, "argv", ["article", *words, "--more", str(tmp_path / "former.jsonl")])
    assert main() == 1  # three arms are missing
    found = json.loads((tmp_path / "r.json").read_text())
    assert [made["arm"] for made in found["rows"]] == ["in-job"] and len(found["faults"]) == len(FAULTS)


def test_a_wrong_override_is_one_message_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(article, "run", lambda *_: pytest.fail("a job was started"))
    monkeypatch.setattr(sys, "argv", ["article", "--work", str(tmp_path), "--set", "recovery.no_such_key=1"])
    assert main() == 2
    assert "recovery.no_such_key" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--count", "0"], ["--arms", "nothing"], ["--steps", "32"]])
def test_wrong_words_are_one_message_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err


def test_documents_say_what_was_kept_and_that_a_cpu_only_tries_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(article_page, "RESULTS", tmp_path)
    assert "Not measured yet" in article_page.faults(tmp_path, document.table)
    for hardware, wall_s in (("cpu", 9.0), (SHARED, 8.0), ("h200x2", 7.0)):
        (tmp_path / hardware).mkdir()
        made = result([row() | {"wall_s": wall_s}], config_of("all-on", "cpu-demo", [], STEPS), options(tmp_path))
        (tmp_path / hardware / "article_faults.json").write_text(json.dumps(made))
        said = article_page.faults(tmp_path, document.table)
        assert f"| all layers | 50.0% | 50.0% | 50.0% | 50.0% | {wall_s:.0f} | hang 9: 3.0 (4)" in said
        assert ("only tries the bench out" in said) is (hardware == "cpu")
        assert (" that two ranks share, torch" in said) is (hardware == SHARED)
