"""Recoveries in the documents: which machine's, beside what goal, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import recovery_page
from bench.document import table
from bench.recovery import ARMS, KINDS
from bench.recovery_records import Sample, fold
from holdfast.goodput.failures import PARTS

NONE: dict[str, float | None] = dict.fromkeys(PARTS, None)


def keep(results: Path, hardware: str, *samples: Sample) -> None:
    made: dict[str, Any] = {
        "hardware": {"cores": 2},
        "versions": {"torch": "2.11.0", "nvidia-resiliency-ext": "0.6.0"},
        "commit": "abc",
        "profile": "gpu-local",
        "overrides": [],
        "rows": fold(samples),
    }
    (results / hardware).mkdir(parents=True)
    (results / hardware / "recovery.json").write_text(json.dumps(made), encoding="utf-8")


def sample(fault: str, seconds: float, arm: str = "holdfast", **parts: float) -> Sample:
    return Sample(arm, fault, fault, "in_process", seconds, NONE | parts)


def said(results: Path) -> str:
    return recovery_page.recoveries(results, table, results)


def test_a_row_has_median_spread_goal_and_parts(tmp_path: Path) -> None:
    samples = [sample("exception", seconds, restored=1.5, group=0.01) for seconds in (2.4, 2.9, 3.3)]
    keep(tmp_path, "h200x2", *samples, sample("exception", 5.0, "nvrx-defaults"))
    text = said(tmp_path)
    assert "| a rank raises | **Holdfast** | in process | 3 | 2.9 s | 2.4 to 3.3 s | 3 s | restored 1.5 s |" in text
    assert "| a rank raises | NVRx's defaults | in process | 1 | 5.0 s | 5.0 to 5.0 s |  |  |" in text
    assert (
        "on 2 x H200, with 378 million parameters and 4.5 GB of state, torch 2.11.0" in text
        and "Not measured on two" not in text
    )


def test_a_shared_gpu_says_so_and_two_are_still_to_be_measured(tmp_path: Path) -> None:
    keep(tmp_path, recovery_page.SHARED, sample("sigkill", 6.1))
    keep(tmp_path, "cpu", sample("hang", 7.0))
    text = said(tmp_path)
    assert "on one H200 that two ranks share" in text and recovery_page.WHILE_SHARED in text
    assert "Not measured on two GPUs" in text and "CPU cores" not in text
    assert "378 million parameters and 4.5 GB of state" in text and "| 8 s |" in text


def test_a_cpu_is_shown_where_no_gpu_has_any_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert said(tmp_path).startswith("Not measured on two GPUs")
    keep(tmp_path, "cpu", sample("hang", 7.0), sample("sigkill", 7.0))
    assert "on 2 CPU cores" in said(tmp_path)
    assert "| 8 s |" not in said(tmp_path), "goals are of GPUs"


def test_every_arm_and_fault_of_the_bench_has_its_words() -> None:
    assert recovery_page.ARMS.keys() == ARMS.keys()
    assert len(recovery_page.WORDS) == len(KINDS) + 1, "a hang has one name on GPUs and one on CPUs"


def test_the_headline_is_of_the_first_machine_and_of_ours(tmp_path: Path) -> None:
    assert recovery_page.headline(tmp_path, tmp_path) == ""
    keep(tmp_path, recovery_page.SHARED, sample("exception", 2.9), sample("exception", 5.0, "nvrx-defaults"))
    assert (
        "On one H200 that two ranks share, with 378 million parameters and 4.5 GB of state, the next step is finished "
        "2.9 s after a rank raises (in process; goal 3 s): medians" in recovery_page.headline(tmp_path, tmp_path)
    )
