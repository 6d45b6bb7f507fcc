"""How `make demo` ends: with a report of both runs, and its path as the last thing that one reads."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench import demo
from holdfast.config import load_profile
from tests.goodput.builder import Run
from tests.report.runs import broken_run, long_run
from tests.report.words import section


def test_the_demo_ends_with_the_path_of_a_report_of_both_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "broken" / "run")
    broken_run(run)
    run.close()
    long_run(tmp_path / "clean" / "run", 20)
    same = {"identical": True, "different": [], "tensors": 1, "parameters": 1}
    monkeypatch.setattr(demo, "compare", lambda clean, broken: same)
    printed = io.StringIO()
    demo.conclude(tmp_path, load_profile(demo.PROFILE), Console(file=printed, width=200), 1.0)
    assert printed.getvalue().splitlines()[-1] == f"Report, to open in a browser: {tmp_path / 'report.html'}"
    page = (tmp_path / "report.html").read_text()
    assert "the broken run" in page and "the clean run" in page
    what_if = section(page, "what-if")
    assert "calibrated on the broken run" in what_if and "recovery.standby off" in what_if


def test_a_fault_that_took_too_long_or_never_ended_is_told_with_its_limit_and_the_load_of_the_machine() -> None:
    slow, never, *_ = demo.LIMITS_S
    took: dict[str, float | None] = dict.fromkeys(demo.LIMITS_S, 0.5)
    took |= {slow: demo.LIMITS_S[slow] + 0.3956829, never: None}
    faults = [{"kind": kind, "recovered_s": seconds} for kind, seconds in took.items()]
    late, lost = demo.problems_of(faults, {"identical": True})
    assert late.startswith(f"{slow}: training again: {demo.LIMITS_S[slow] + 0.4:.1f} s; the limit is ")
    assert lost.startswith(f"{never}: training again: never; the limit is {demo.LIMITS_S[never]:g} s (load of this")
