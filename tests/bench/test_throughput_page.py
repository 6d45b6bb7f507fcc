"""Throughput in the documents: goals, comparisons, what a reader has to know, and where the time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import throughput_page
from bench.arms.throughput_trace import summary
from bench.document import table
from bench.throughput_spec import EAGER, HOLDFAST, TITAN, TRIALS
from tests.bench.throughput_lines import NO_ROOM, OURS, PLAIN, SIZES, failed_line, folded, steps_line


def kept(tmp_path: Path, *lines: dict[str, Any]) -> list[Path]:
    path = tmp_path / "throughput.json"
    path.write_text(json.dumps(folded(*lines)), encoding="utf-8")
    return [tmp_path / "none.json", path]


def test_a_page_without_a_result_says_how_to_get_one(tmp_path: Path) -> None:
    said = throughput_page.throughput(tmp_path, table, [tmp_path / "none.json"])
    assert said.startswith("Not measured yet") and "bench.throughput" in said


def test_a_page_says_whether_the_goal_is_met_and_beside_whom(tmp_path: Path) -> None:
    said = throughput_page.throughput(
        tmp_path, table, kept(tmp_path, steps_line(OURS, 1.5), steps_line(PLAIN, 3.0))
    )  # fmt: skip
    assert "as was aimed at (at least 45%); 2.00 times plain FSDP2 script, eager" in said
    missed = throughput_page.throughput(tmp_path, table, kept(tmp_path, steps_line(OURS, 9.0)))
    assert "MISSING what was aimed at (at least 45%)" in missed
    assert "Not measured: llama-3b on 1 GPU, where 50% MFU is aimed at" in missed
    assert "llama-3.1-8b on 2 GPUs, where" not in missed


def test_a_page_says_that_the_gpu_was_full_and_what_an_arm_leaves_out_on_one(tmp_path: Path) -> None:
    ours, titan = (next(t for t in TRIALS if (t.arm, t.model) == (arm, "8b-1gpu")) for arm in (HOLDFAST, TITAN))
    lines = steps_line(ours, 1.0, alloc_retries=20), steps_line(titan, 1.0)
    said = throughput_page.throughput(tmp_path, table, kept(tmp_path, *lines))
    assert f"{ours.name} 20 times in 10 steps." in said and throughput_page.ALONE in said
    said = throughput_page.throughput(tmp_path, table, kept(tmp_path, steps_line(OURS, 1.5)))
    assert "was full" not in said and throughput_page.ALONE not in said


def test_a_page_compares_also_where_no_goal_was_set(tmp_path: Path) -> None:
    ours, plain = (next(t for t in TRIALS if (t.arm, t.model) == (arm, "8b-1gpu")) for arm in (HOLDFAST, EAGER))
    said = throughput_page.throughput(tmp_path, table, kept(tmp_path, steps_line(ours, 1.0), steps_line(plain, 1.5)))
    assert "llama-3.1-8b on 1 GPU: 8,192 tokens per second and GPU" in said and "MFU; 1.50 times plain" in said
    assert "Not measured: llama-3.1-8b on 2 GPUs, where 45% MFU is aimed at" in said


def test_a_page_shows_what_does_not_fit_and_where_the_time_goes(tmp_path: Path) -> None:
    where = {
        "kind": "trace", "trial": OURS.name, "run": "r", **SIZES.of(OURS.model), **summary([("nvjet", 0, 3_000_000)], 1)
    }  # fmt: skip
    failed = failed_line(PLAIN, NO_ROOM)
    said = throughput_page.throughput(tmp_path, table, kept(tmp_path, steps_line(OURS, 1.5), where, failed))
    assert "| does not fit |" in said and "| matrix products | 3.0 |" in said


def test_the_headline_has_ours_beside_the_others_and_nothing_without_a_number(tmp_path: Path) -> None:
    assert throughput_page.headline(tmp_path, [tmp_path / "none.json"]) == ""
    said = throughput_page.headline(tmp_path, kept(tmp_path, steps_line(OURS, 1.5), steps_line(PLAIN, 3.0)))
    ours, plain = (row["mfu"] for row in folded(steps_line(OURS, 1.5), steps_line(PLAIN, 3.0))["rows"])
    assert f"{ours:.1%} for llama-3.1-8b on 2 GPUs (plain FSDP2 script, eager {plain:.1%})" in said
