"""Every kind of fault in every phase strikes in real training on two ranks, and the run ends as the catalogue says.

One program trains all plans of tests/trainer/fault_plans.py, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import load_profile
from holdfast.config.fault_catalogue import catalogue
from holdfast.faults.schedule import expected
from tests.trainer.fault_plans import BY_RUNNER, LETHAL, PLANS, STEPS, sets_of, tried

ROOT = Path(__file__).parents[2]
LIMIT_S = 800

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 20)]


class Trained:
    """What the runs of all plans left behind."""

    def __init__(self, folder: Path, results: dict[str, Any]) -> None:
        self.folder = folder
        self.results = results

    def events(self, plan: str, *names: str) -> list[dict[str, Any]]:
        """Events of these names, of all ranks of a plan."""
        lines = [
            line for log in self.folder.glob(f"{plan}/run/events/*.jsonl") for line in log.read_text().splitlines()
        ]
        return [event for event in map(json.loads, lines) if event["name"] in names]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """All plans, trained."""
    folder = tmp_path_factory.mktemp("plans")
    spec = folder / "spec.json"
    spec.write_text(json.dumps({name: sets_of(name) for name in PLANS}))
    command = [sys.executable, "-m", "tests.trainer.fault_ranks", str(spec), str(folder)]
    with open(folder / "errors.txt", "wb") as errors:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, (folder / "errors.txt").read_text()[-4000:]
    return Trained(folder, json.loads(done.stdout.splitlines()[-1]))


def test_the_plans_try_every_row_that_a_cpu_allows() -> None:
    allowed = {
        (row.kind, row.phase)
        for row in catalogue().rows()
        if not row.refused and catalogue().entries[row.kind].device != "cuda"
    }
    elsewhere = {pair for pair in allowed if pair[0] in (*LETHAL, *BY_RUNNER)}
    assert tried() == allowed - elsewhere


@pytest.mark.parametrize("plan", PLANS)
def test_each_fault_of_a_plan_strikes_once_at_its_rank_and_the_run_ends_as_promised(
    trained: Trained, plan: str
) -> None:
    config = load_profile("cpu-test", sets_of(plan))
    promised = expected(PLANS[plan], config)
    struck = trained.events(plan, "fault", "disturbance")
    assert sorted(event["id"] for event in struck) == sorted(one.id for one in promised.detected)
    ranks = {fault.id: fault.rank for fault in config.faults}
    assert all(event["rank"] == ranks[event["id"]] for event in struck)
    result, clean = trained.results[plan], trained.results["clean"]
    ending = sum(one.ends_attempt for one in promised.detected)
    assert clean["weights"]["step"] == str(STEPS)
    if promised.end == "terminal":
        assert (trained.folder / plan / "run" / "TERMINAL.json").exists()
        return
    assert result["error"] == ""
    assert result["attempts"] == 1 + ending, "each fault that ends an attempt ends one, and no other does"
    if promised.end == "bit_equal":
        assert result["weights"] == clean["weights"]


def test_a_save_that_must_fail_fails_and_no_other_does(trained: Trained) -> None:
    promised = expected(PLANS["saves"], load_profile("cpu-test", sets_of("saves")))
    must = [one.id for one in promised.detected if one.detected_by == "save_failed"]
    failed = trained.events("saves", "save_failed")
    steps = {event["id"]: event["step"] for event in trained.events("saves", "disturbance")}
    assert {event["step"] for event in failed} == {steps[identity] for identity in must}
    for identity, says in (
        ("full_disk", "No space left"),
        ("readonly_disk", "Permission denied"),
        ("writer_death", "-9"),
    ):
        mine = [identifier for identifier in must if identifier.startswith(identity)]
        errors = [event["error"] for event in failed if event["step"] in {steps[one] for one in mine}]
        assert any(says in error for error in errors), (identity, errors)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_the_weights_stay_the_same(trained: Trained) -> None:
    skipped = {
        event["folder"].partition("/")[0] for event in trained.events("stored", "skipped") if "checksum" in event["why"]
    }
    assert skipped == {"step-00000006", "step-00000011", "step-00000015"}
    assert trained.results["stored"]["weights"] == trained.results["clean"]["weights"]


def test_a_flip_in_the_staged_copy_is_seen_by_nobody_and_is_in_the_weights(trained: Trained) -> None:
    """The limit of checksums that the catalogue names: the run goes on from a wrong value."""
    assert trained.results["staged"]["weights"] != trained.results["clean"]["weights"]
    assert trained.events("staged", "save_failed") == []
