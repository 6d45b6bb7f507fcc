"""The what-if of the reported run: its numbers are those of `holdfast plan`; where there are none it says why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.config import dump, load_profile, names
from holdfast.report.planned import what_if_of
from holdfast.report.what_if import NoWhatIf, WhatIf
from tests.goodput.builder import Run, begin
from tests.report.runs import broken_run, long_run, reported, steps
from tests.report.words import section


def configured(run_dir: Path, profile: str, *overrides: str) -> Path:
    """The run directory, with another config."""
    (run_dir / names.RUN_YAML).write_text(dump(load_profile(profile, overrides)))
    return run_dir


def shown(run_dir: Path, tmp_path: Path) -> str:
    """The section of the page that `holdfast report` writes of a run."""
    page = tmp_path / "report.html"
    assert main(["report", str(run_dir), "-o", str(page)]) == 0
    return section(page.read_text(), "what-if")


def planned(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `holdfast plan --from` says of it in JSON."""
    capsys.readouterr()
    assert main(["plan", "--profile", str(run_dir / names.RUN_YAML), "--from", str(run_dir), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("profile", ["cpu-demo", "llama3-8b-p5x2"])
def test_the_section_has_the_numbers_of_the_plan_that_is_calibrated_on_the_run(
    profile: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    configured(run.path, profile)
    document = planned(run.path, capsys)
    (plan,) = document["plans"]
    said = re.sub(r"\|+", "|", shown(run.path, tmp_path))
    saved = ("saved_gpu_hours_per_month", "saved_usd_per_month")
    rows = [(one["change"], one, *(one[key] for key in saved)) for one in plan["changes"]]
    free = 0.0 if plan["configured"]["cost_per_month"]["lost_usd"] is not None else None
    assert len(rows) > 5
    for name, outlook, hours, dollars in [("as it is", plan["configured"], 0.0, free), *rows]:
        cells = [
            name,
            f"{outlook['goodput']:.2%}",
            f"{outlook['band']['low']:.2%} to {outlook['band']['high']:.2%}",
            *(
                "-" if number is None else f"{round(number):+,}" if round(number) else "0"
                for number in (hours, dollars)
            ),
        ]
        assert f"|{'|'.join(cells)}|" in said
    shown_by_run = len(document["inputs"]) - len(document["inputs_kept_at_default"])
    assert f"{shown_by_run} of {len(document['inputs'])} durations are calibrated on run" in said
    assert f"Failure rate: {document['failure_rate']['name']}" in said


def test_the_run_that_has_overcome_most_faults_is_the_one_that_is_planned(run: Run, tmp_path: Path) -> None:
    broken_run(run)
    long_run(tmp_path / "peace", 20)
    configured(tmp_path / "peace", "cpu-demo")
    runs = [reported(tmp_path / "peace", "in peace"), reported(run.path, "broken")]
    both, alone = what_if_of(runs), what_if_of(runs[:1])
    assert isinstance(both, WhatIf) and "calibrated on broken" in both.basis and "no fault" not in both.basis
    assert isinstance(alone, WhatIf)
    assert "It had no fault, so every detection and restart is such a default" in alone.basis


def test_a_run_that_is_too_short_to_calibrate_on_is_reported_without(run: Run, tmp_path: Path) -> None:
    logs = run.ranks(1)
    begin(logs, 2)
    steps(logs, 3, 1, 1)
    configured(run.path, "cpu-demo")
    assert "Not computed. Of run: it has no attempt with two finished steps" in shown(run.path, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["reliability.failure_rate=none"], "its config plans for no failures, so no change can buy anything."),
        (["reliability.failure_rate=rsc1"], "the failure rate counts node hardware alone"),
        (["checkpoint.mode=off"], "nothing is saved, so there is no interval to plan"),
    ],
)
def test_a_run_that_the_planner_refuses_is_reported_with_the_reason(
    overrides: list[str], why: str, run: Run, tmp_path: Path
) -> None:
    broken_run(run)
    configured(run.path, "cpu-demo", *overrides)
    said = shown(run.path, tmp_path)
    assert f"Not computed. Of run: {why}" in said and said.count("\n") < 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no run.yaml"),
        ("a: [unclosed", "its run.yaml is no YAML"),
        ("name: x\nfrom_the_future: 1\n", "its run.yaml is no config of this version (from_the_future: "),
    ],
)
def test_a_run_without_a_config_of_this_version_is_reported_with_the_reason(text: str, why: str, run: Run) -> None:
    broken_run(run)
    (run.path / names.RUN_YAML).write_text(text)
    said = what_if_of([reported(run.path, "demo")])
    assert isinstance(said, NoWhatIf) and said.why.startswith(f"Of demo: {why}")
