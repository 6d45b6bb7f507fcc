"""The article's checkpoint experiment: two ways to compute an efficiency, another interval, and the arms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import json_lines, save_efficiency, save_efficiency_page, save_efficiency_projection
from bench.document import table
from bench.save_efficiency import parse
from bench.save_efficiency_results import COMPUTED_AT, alike, calibration, finished, fold, numbers
from holdfast.config import load_profile
from holdfast.config.failure_rates import FAILURE_RATES

QUIET = 0.25
EVERY = 10


def arm_line(blocked: float, slower: float = 0.0, drain: float = 0.0, **changed: Any) -> dict[str, Any]:
    """30 steps with 3 saves, each of which blocks and makes the five steps after it slower."""
    steps = [QUIET] * 30
    for step in (10, 20, 30):
        steps[step - 1] += blocked
        for after in range(step, min(step + 5, 30)):
            steps[after] += slower
    line = {
        "kind": "arm", "method": "holdfast", "run": "r", "steps_s": steps, "calls_s": [blocked] * 3, "drain_s": drain,
        "wall_s": sum(steps) + drain, "content_is_right": True, "versions": {"torch": "2.11.0"}, "gpus": [],
        "shard_bytes": 6_500_000_000, "parameters": 1_100_000_000,
    }  # fmt: skip
    return line | changed


def run_line() -> dict[str, Any]:
    return {
        "kind": "run", "method": "", "run": "r", "hardware": {"cores": 2}, "commit": "abc", "steps": 30, "every": EVERY,
        "model": {"layers": 5}, "target": {"file_system": "tmpfs"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [["--cpu"], ["--steps", "200"], ["--every", "50"], ["--layers", "6"], ["--gpus", "1"], ["--step-s", "0.5"]],
)
def test_what_was_measured_on_a_cpu_or_in_other_sizes_is_not_done(words: list[str]) -> None:
    ours, other = parse(["--commit", "x"]).order, parse(["--commit", "x", *words]).order
    measured = [run_line(), {"kind": "calibration", "method": "holdfast", "run": "r", "micro_batch": 3}, arm_line(0.0)]
    lines = [json.loads(json.dumps(line | other.sizes)) for line in measured]
    assert finished(alike(lines, ours)) == set() and calibration(alike(lines, ours)) is None
    assert fold(alike(lines, ours))["rows"] == []
    assert finished(alike(lines, other)) == {"holdfast"} and calibration(alike(lines, other)) is not None
    assert len(fold(alike(lines, other))["rows"]) == 1
    assert alike([arm_line(0.0) | ours.sizes | {"cuda": False}], ours) == []


def test_a_run_that_loses_nothing_to_its_saves_is_all_training() -> None:
    made = numbers(arm_line(0.0), EVERY)
    assert made["efficiency"] == made["efficiency_article"] == made["efficiency_at_1000_computed"] == 1.0


def test_a_blocking_save_costs_the_same_both_ways() -> None:
    made = numbers(arm_line(2.5), EVERY)
    assert made["efficiency"] == pytest.approx(7.5 / 15.0) == pytest.approx(made["efficiency_article"])


def test_the_articles_way_leaves_the_wait_for_the_last_save_out() -> None:
    made = numbers(arm_line(0.0, drain=7.5), EVERY)
    assert made["efficiency_article"] == 1.0 and made["efficiency"] == pytest.approx(0.5)


def test_the_articles_way_is_blind_to_steps_that_a_write_slows_down() -> None:
    made = numbers(arm_line(0.0, slower=0.25), EVERY)
    assert made["efficiency_article"] == 1.0 and made["efficiency"] == pytest.approx(7.5 / 10.0)


def test_another_interval_is_computed_from_what_the_second_save_and_its_steps_cost() -> None:
    first = arm_line(1.0, slower=0.1)
    first["steps_s"][9] += 50.0  # a first save that sets something up
    made = numbers(first, EVERY)
    assert made["costs_s"] == [pytest.approx(51.5), pytest.approx(1.5)]
    work = COMPUTED_AT * QUIET
    assert made["efficiency_at_1000_computed"] == pytest.approx(work / (work + 1.5))


def test_a_cost_below_nothing_is_noise_and_never_more_than_all_of_a_run() -> None:
    line = arm_line(0.0)
    line["steps_s"][15:20] = [0.2] * 5
    assert numbers(line, EVERY)["efficiency_at_1000_computed"] == 1.0


def test_arms_that_left_nothing_have_rows_with_the_reason() -> None:
    failed = {"kind": "failed", "method": "sync", "run": "r", "error": "it broke"}
    skipped = {"kind": "skipped", "method": "nvrx_torch", "run": "r", "reason": "no CUDA"}
    rows = {row["arm"]: row for row in fold([run_line(), failed, skipped, arm_line(0.1)])["rows"]}
    assert rows["sync"]["error"] == "it broke" and rows["nvrx_torch"]["skipped"] == "no CUDA"
    assert "efficiency" in rows["holdfast"]


@pytest.mark.parametrize("words", [["--arms", "tape"], ["--steps", "250"], ["--every", "1"]])
def test_words_that_make_no_experiment_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--commit", "x"])
    assert ended.value.code == 2 and "--" in capsys.readouterr().err


def test_a_page_without_a_result_says_how_to_get_one(tmp_path: Path) -> None:
    said = save_efficiency_page.save_efficiency(tmp_path, table, tmp_path / "none.json")
    assert said.startswith("Not measured yet") and "bench.save_efficiency" in said


def test_a_page_has_both_numbers_and_calls_the_computed_one_so(tmp_path: Path) -> None:
    path = tmp_path / "save_efficiency.json"
    lines = [run_line(), arm_line(0.0, drain=7.5), arm_line(2.5, method="sync", content_is_right=False)]
    path.write_text(json.dumps(fold(lines)), encoding="utf-8")
    said = save_efficiency_page.save_efficiency(tmp_path, table, path)
    assert "at an interval of 1,000 (computed)" in said
    assert "| **Holdfast** | 100.0% | **50.0%** |" in said
    assert "Not what had been saved was read back: sync." in said


def test_the_projection_says_that_it_is_computed_and_waiting_costs_half_on_the_articles_file_system() -> None:
    said = save_efficiency_projection.projection(table)
    assert said.startswith("**Computed, not measured**")
    none = FAILURE_RATES["none"]
    config = load_profile(save_efficiency_projection.PROFILE)
    waiting = load_profile(save_efficiency_projection.PROFILE, ["checkpoint.mode=sync"])
    share = {one.checkpoint.mode: save_efficiency_projection.goodput(one, 2, none) for one in (config, waiting)}
    assert float(share["sync"].rstrip("*%")) == pytest.approx(100 * 400 / (400 + 411), abs=0.5)
    assert float(share["async"].rstrip("*%")) == pytest.approx(100 * 400 / 411, abs=0.5)


@pytest.mark.timeout(300)
def test_arms_save_and_drain_on_a_cpu_and_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, out = tmp_path / "raw.jsonl", tmp_path / "out.json"
    words = ["--cpu", "--steps", "6", "--every", "3", "--arms", "holdfast,dcp", "--target", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["save_efficiency", *words, "--raw", str(raw), "--out", str(out), "--commit", "x"])
    assert save_efficiency.main() == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["arm"] for row in rows] == ["holdfast", "dcp"]
    for row in rows:
        assert row["content_is_right"] is True and row["saves"] == 2 and row["steps"] == 6
        assert row["efficiency"] > 0 and row["drain_s"] >= 0
    before = json_lines.read([raw])
    sizes = parse(words).order.sizes
    assert all(sizes.items() <= line.items() for line in before)
    assert save_efficiency.main() == 0
    assert json_lines.read([raw]) == before


def test_arms_that_the_deadline_keeps_from_starting_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--cpu", "--arms", "nvrx_torch,holdfast", "--deadline", "20", "--commit", "x", "--target", str(tmp_path)]
    files = ["--raw", str(tmp_path / "raw.jsonl"), "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["save_efficiency", *words, *files])
    assert save_efficiency.main() == 1
    assert "still to run, by another call: holdfast\n" in capsys.readouterr().out
