"""The bench of saves: what it makes of what it saw, and that the whole of it runs on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import checkpoint, checkpoint_page
from bench.checkpoint_results import MethodLines, Raw, fold, interval, null_costs, row
from bench.checkpoint_spec import METHODS, WRITE, Spec
from bench.rank_processes import run_ranks

ROOT = Path(__file__).parents[2]
STEP = 0.5
CALIBRATION = {
    "kind": "calibration", "method": "calibrate", "run": "1", "copy_gb_s": 50.0, "shard_bytes": 10**10, "copy_s": 0.2,
    "micro_batch": 8, "short_micro_batch": 3, "tight_micro_batch": 5, "step_s": STEP, "parameters": 2 * 10**9,
    "gpus": ["GPU"] * 4,
    "versions": {"python": "3.12", "torch": "2.11", "nvidia-resiliency-ext": "0.6.0"},
}  # fmt: skip
RUN = {
    "kind": "run", "method": "", "run": "1", "commit": "abc", "boot": "b", "world": 2, "block": 3,
    "model": {"layers": 1}, "hardware": {"cores": 8, "cpu": "CPU"}, "target": {"file_system": "tmpfs", "threads": 4},
}  # fmt: skip


def saved(
    index: int, *excess: float, method: str = "holdfast", run: str = "1", noise: tuple[float, ...] = (0.0,) * 3
) -> dict[str, Any]:
    """The raw line of a save whose steps took so much longer than the baseline."""
    block = [STEP + one for one in noise]
    return {
        "kind": "save", "method": method, "run": run, "index": index, "call_s": 0.001, "wait_s": 0.0, "durable_s": 1.0,
        "window": [STEP + one for one in excess], "before": block, "after": block, "gradients": [0.45] * 6,
        "first": {"gradients": 0.45},
    }  # fmt: skip


def ended(method: str = "holdfast", run: str = "1") -> dict[str, Any]:
    return {"kind": "arm", "method": method, "run": run, "tree_bytes": [100, 200], "content_is_right": True}


def rows_of(*lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["method"]: one for one in fold(Raw([CALIBRATION, RUN, *lines]))["rows"]}


# --- numbers ---


def test_a_save_costs_what_its_own_step_and_all_steps_until_its_write_was_over_took_longer() -> None:
    lines = [saved(0, 9.0, 9.0), saved(1, 0.003, 0.001, 0.002), saved(2, 0.003, 0.001, 0.002), ended()]
    ours = rows_of(*lines)["holdfast"]
    assert ours["blocked_s"] == pytest.approx(0.003)
    assert ours["hidden_s"] == pytest.approx(0.003)
    assert ours["total_s"] == pytest.approx(0.006)
    assert ours["step_s"] == STEP
    assert ours["saves"] == 2
    assert ours["first_blocked_s"] == pytest.approx(9.0), "the first is told apart"


def test_the_first_save_of_a_synchronous_method_is_one_of_its_saves() -> None:
    lines = [saved(index, cost, method="torch_save") for index, cost in enumerate((5.0, 6.0, 7.0))]
    found = rows_of(*lines, ended("torch_save"))["torch_save"]
    assert (found["saves"], found["total_s"]) == (3, pytest.approx(6.0))


def test_the_baseline_of_a_save_is_the_mean_of_all_steps_of_its_arm_without_one() -> None:
    """Of the two blocks beside it, an error would enter the sum as often as there are steps."""
    quiet, slow = (0.0, 0.0, 0.0), (0.0, 0.0, 0.09)
    lines = [saved(0, 0.1), saved(1, 0.01, 0.01, noise=slow), saved(2, 0.01, 0.01, noise=quiet), ended()]
    ours = rows_of(*lines)["holdfast"]
    assert ours["step_s"] == pytest.approx(STEP + 0.09 / 12)  # one slow step in the blocks before 0, after 0, 1 and 2
    assert ours["total_s"] == pytest.approx(0.02 - 2 * 0.09 / 12)


def test_what_each_step_behind_a_save_takes_longer_is_in_the_row() -> None:
    lines = [saved(0, 0.1), saved(1, 0.03, 0.01, 0.0), saved(2, 0.05, 0.03, 0.0), ended()]
    assert rows_of(*lines)["holdfast"]["slower_by_position_s"] == pytest.approx([0.04, 0.02, 0.0])


def test_the_median_s_interval_is_the_same_each_time_and_holds_the_median() -> None:
    values = [1.0, 1.1, 0.9, 1.3, 1.05, 5.0, 1.2]
    low, high = interval(values)
    assert (low, high) == interval(values)
    assert 0.9 <= low < 1.1 < high <= 5.0
    assert interval([2.0] * 5) == (2.0, 2.0)


def test_steps_without_a_save_cost_nothing_by_the_same_sum_unless_they_differ() -> None:
    assert null_costs([saved(1, 0.1, 0.1), saved(2, 0.1, 0.1)]) == pytest.approx([0.0] * 4)
    uneven = null_costs([saved(1, 0.1, 0.1, noise=(0.0, 0.0, 0.3))])
    assert uneven == pytest.approx([-0.3, 0.15, 0.15]), "each against the mean of all others: they cancel out"


def test_the_step_that_is_shorter_than_the_copy_has_its_bound_in_the_row() -> None:
    name = "holdfast_short_step"
    line = {**saved(1, 0.1, method=name), "gradients": [0.15] * 6, "first": {"gradients": 0.15}}
    assert rows_of(saved(0, 0.1, method=name), line, ended(name))[name]["bound_s"] == pytest.approx(0.2 - 0.15)


def test_memory_is_what_the_machine_used_more_at_its_largest_or_the_processes_at_the_end() -> None:
    used = [(99.0, 500), (99.9, 1000), (101.0, 9000), (102.0, 3000)]
    lines = [{"kind": "ready", "method": "holdfast", "run": "1", "at": 100.0}, saved(0, 0.1), saved(1, 0.1), ended()]
    found = rows_of(*lines, {"kind": "memory", "method": "holdfast", "run": "1", "used": used})["holdfast"]
    assert (found["host_machine_bytes"], found["host_process_bytes"]) == (4000, 200)
    assert found["host_bytes"] == 4000


# --- runs that were cut short ---


def test_what_a_killed_process_left_is_kept_and_marked(tmp_path: Path) -> None:
    lines = [
        CALIBRATION,
        RUN,
        saved(0, 0.1),
        saved(1, 0.2),
        {"kind": "failed", "method": "holdfast", "run": "1", "error": "x"},
    ]
    path = tmp_path / "raw.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "save", "meth')
    raw = Raw.read([path, tmp_path / "missing.jsonl"])
    (found,) = fold(raw)["rows"]
    assert (found["incomplete"], found["total_s"]) == ("x", pytest.approx(0.2))
    assert raw.finished == set(), "it runs again"


def test_a_second_run_of_a_method_replaces_the_one_that_was_cut_short() -> None:
    again = [saved(index, 0.01, run="2") for index in range(3)]
    later = RUN | {"run": "2", "commit": "def", "block": 2}
    ours = rows_of(saved(0, 0.1), saved(1, 0.1), later, *again, ended(run="2"))["holdfast"]
    assert ours["total_s"] == pytest.approx(0.01)
    assert "incomplete" not in ours
    assert (ours["commit"], ours["block"]) == ("def", 2), "what it was measured with, not what the first run had"


def test_the_page_names_rows_of_another_commit_than_the_table() -> None:
    later = RUN | {"run": "2", "commit": "def", "block": 2}
    theirs = [saved(index, 0.3, method="dcp_sync", run="2") for index in range(3)]
    ours = [saved(0, 0.1), saved(1, 0.1), ended()]
    result = fold(Raw([CALIBRATION, RUN, *ours, later, *theirs, ended(method="dcp_sync", run="2")]))
    assert result["commit"] == "abc"
    (said,) = checkpoint_page.other_commits(result)
    assert "def" in said and "torch DCP, `save`" in said and "Holdfast" not in said
    assert "has 2 to 3 steps" in checkpoint_page.computed(result)


def test_a_method_that_left_nothing_has_a_row_that_says_why() -> None:
    skipped = {"kind": "skipped", "method": "nvrx_dcp", "run": "1", "reason": "no CUDA"}
    failed = {"kind": "failed", "method": "dcp_sync", "run": "1", "error": "out of memory"}
    found = rows_of(skipped, failed)
    by = {"commit": "abc", "block": 3}
    assert found["nvrx_dcp"] == {"method": "nvrx_dcp", "skipped": "no CUDA"} | by
    assert found["dcp_sync"] == {"method": "dcp_sync", "error": "out of memory"} | by


def test_without_a_calibration_the_result_says_why_there_is_none() -> None:
    failed = {"kind": "failed", "method": "calibrate", "run": "1", "error": "no GPU"}
    assert fold(Raw([RUN, failed])) == {"rows": [{"method": "calibrate", "error": "no GPU"}]}


# --- the page ---


def result_with(*lines: dict[str, Any], write: dict[str, Any] | None = None) -> dict[str, Any]:
    return fold(Raw([CALIBRATION, RUN, *lines, *([write] if write else [])]))


def test_the_page_says_whether_each_goal_was_met_and_where_noise_is_larger_than_the_goal() -> None:
    good = [saved(0, 0.01), *(saved(index, 0.002, 0.001) for index in range(1, 6)), ended()]
    write = {"kind": "write", "method": "write", "run": "1", "ours_gb_s": 8.0, "plain_gb_s": 10.0, "ratio": 0.8}
    said = " ".join(checkpoint_page.verdicts(result_with(*good, write=write)))
    assert "costs 0.60% of one step, as was aimed at (at most 1%)" in said
    assert "80%, MISSING the goal (at least 90%)" in said
    assert "wider" not in said
    bad = [saved(0, 0.2), *(saved(index, 0.01 * index) for index in range(1, 8)), ended()]
    said = " ".join(checkpoint_page.verdicts(result_with(*bad)))
    assert "MISSING the goal (at most 1%)" in said
    assert "holds the step up for 200.0 ms, MISSING the goal" in said
    assert "is wider than that goal (5.0 ms)" in said


def test_every_row_of_the_page_has_a_cell_for_each_column(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [
        saved(0, 0.01),
        saved(1, 0.01),
        ended(),
        {"kind": "skipped", "method": "nvrx_dcp", "run": "1", "reason": "?"},
    ]
    result = result_with(*lines)
    assert {len(cells) for cells in checkpoint_page.table_rows(result)} == {len(checkpoint_page.COLUMNS)}
    assert set(checkpoint_page.WORDS) == set(METHODS)
    assert "2 x GPU, 8 cores, torch 2.11" in checkpoint_page.source(result, ROOT / "docs")
    monkeypatch.setattr(checkpoint_page, "KEPT", tmp_path / "none.json")
    assert checkpoint_page.read() is None


def test_the_kept_result_is_of_right_content_and_says_of_what_is_not_whole_why() -> None:
    kept = checkpoint_page.read()
    assert kept is not None
    whole = [one for one in kept["rows"] if not one.get("error") and not one.get("incomplete")]
    assert {"holdfast", "nvrx_dcp", "nvrx_torch", "dcp_sync"} <= {one["method"] for one in whole} <= set(METHODS)
    assert [one["method"] for one in whole if not one.get("content_is_right")] == []
    assert kept["step_s"] >= 1.5 * kept["copy_s"]
    assert kept["write"] is None or kept["write"]["ours_gb_s"] > 0


# --- processes ---


def spec_of(tmp_path: Path, arm: str) -> Spec:
    return Spec(
        arm=arm, method=arm, run="1", raw=str(tmp_path / "raw.jsonl"), target=str(tmp_path), cuda=False, world=2,
        threads=1, saves=1, **checkpoint.CPU_SIZES,
    )  # fmt: skip


def test_a_method_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checkpoint.parse(["--arms", "holdfast,nothing"])
    assert "there is no nothing; there are: write, profile, holdfast" in capsys.readouterr().err


def test_a_rank_that_fails_is_told_with_its_error_and_nothing_is_left_running(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "calibrate")
    ended_how, _ = run_ranks("bench.arms.rank", spec.to_json(), spec.world, 0.5, cuda=spec.cuda)
    assert ended_how.why.startswith("the limit of 0 s passed")
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_nvrx_is_skipped_with_a_reason_where_there_is_no_gpu(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text(json.dumps(CALIBRATION) + "\n")
    done = bench("--cpu", "--arms", "nvrx_dcp,nvrx_torch", "--raw", str(raw), "--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(one["method"], "CUDA" in one["skipped"]) for one in rows] == [("nvrx_dcp", True), ("nvrx_torch", True)]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.checkpoint", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_bench_runs_on_a_cpu_and_every_arm_saves_what_was(tmp_path: Path) -> None:
    out = tmp_path / "checkpoint.json"
    arms = "torch_save,dcp_async_thread,holdfast,write"
    done = bench(
        "--cpu", "--arms", arms, "--saves", "2", "--block", "2", "--lead-in", "2", "--target", str(tmp_path), "--out",
        str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    rows = {one["method"]: one for one in result["rows"]}
    assert set(rows) == {"torch_save", "dcp_async_thread", "holdfast"}
    assert all(one["content_is_right"] and one["saves"] == 2 for one in rows.values())
    assert rows["torch_save"]["hidden_s"] == 0
    assert result["write"]["ours_gb_s"] > 0
    assert list(tmp_path.glob("holdfast-bench-*")) == [], "what was saved is deleted"
    again = bench("--cpu", "--arms", arms, "--target", str(tmp_path), "--out", str(out))
    assert again.returncode == 0 and "..." not in again.stdout, "what is there is not measured again"


def test_the_methods_that_are_compared_are_those_of_the_issue() -> None:
    counts = {name: method.saves for name, method in METHODS.items() if method.step == "long"}
    assert counts == {
        "holdfast": 20, "nvrx_dcp": 5, "nvrx_torch": 5, "dcp_async_thread": 5, "dcp_async_process": 5, "dcp_sync": 3,
        "torch_save": 3,
    }  # fmt: skip
    assert WRITE not in METHODS
    assert row("dcp_sync", MethodLines(), CALIBRATION, 2)["error"] == "it left no save"
