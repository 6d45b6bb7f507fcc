"""bench.prediction: which runs it makes, what it keeps of them, and what the kept file says."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import prediction
from bench.prediction import KINDS, LIMIT, RUNS, Planned, Run, make, row
from holdfast.config import RunConfig, dump, names
from holdfast.config.failure_rates import FAILURE_RATES
from holdfast.goodput.ledger import account
from holdfast.goodput.planner import Setting, configured, default_inputs, durations_of, policy_of
from holdfast.goodput.simulate import Fleet, GivenFault, simulate, timeline_of
from tests.goodput import builder

PAIRS = len(RUNS) * (len(RUNS) - 1)


def test_four_runs_differ_in_seed_interval_and_faults_and_have_one_fault_of_each_kind() -> None:
    assert len({run.seed for run in RUNS}) == len({run.interval_steps for run in RUNS}) == len(RUNS)
    assert len({json.dumps(run.faults) for run in RUNS}) == len(RUNS)
    for run in RUNS:
        assert sorted(fault.kind for fault in run.config.faults) == sorted(KINDS)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_faults_strike_where_no_write_can_be_under_way(run: Planned) -> None:
    for fault in run.faults:
        since_save = (fault["step"] - 1) % run.interval_steps
        assert since_save >= run.interval_steps // 2
    steps = [fault["step"] for fault in run.faults]
    # Each has an interval before it in which something is saved since the fault before, and all lie in the run.
    assert all(later - earlier > 2 * run.interval_steps for earlier, later in pairwise(steps))
    assert steps[-1] + run.interval_steps < prediction.STEPS


def imagined(planned: Planned) -> Run:
    """A run in which everything lasted as the defaults say."""
    config = planned.config
    one = Setting(config=config, nodes=2, rate=FAILURE_RATES["none"], inputs=default_inputs(config, 2))
    durations, policy = durations_of(one, configured(one)), policy_of(one, configured(one))
    faults = [GivenFault(kind=fault.kind, at_step=fault.step) for fault in config.faults]
    fleet = Fleet(nodes=2, spares=1, repair_s=one.inputs["repair_s"], repair_varies=False)
    timeline = timeline_of(simulate(durations, fleet, policy, steps=config.training.steps, faults=faults), durations)
    return Run(planned.name, config, timeline, account(timeline))


def test_runs_in_which_everything_lasts_the_same_predict_each_other() -> None:
    found = row(imagined(RUNS[0]), imagined(RUNS[1]))
    assert found["run"] == "a" and found["calibrated_on"] == "b" and found["not_calibrated"] == []
    assert found["predicted_lost_steps"] == found["measured_lost_steps"]
    assert abs(found["difference"]) < 0.003
    assert found["difference"] == pytest.approx(found["predicted"] - found["measured"])


def logged(folder: Path, config: RunConfig) -> None:
    """A complete run of this config, as its folder holds it."""
    run = builder.Run(folder / "run")
    ranks = run.ranks(1.0)
    builder.begin(ranks, 2.0)
    at = builder.train(ranks, 3.0, 1, 10)
    builder.end(ranks, at, "complete")
    run.close()
    (folder / "run" / names.RUN_YAML).write_text(dump(config))


def test_a_complete_run_of_the_same_config_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunConfig] = []

    def run_job(config: RunConfig, folder: Any, options: Any) -> int:
        made.append(config)
        return 0

    monkeypatch.setattr(prediction, "run_job", run_job)
    logged(tmp_path / "a", RUNS[0].config)
    make(RUNS[0], tmp_path / "a", fresh=False)
    assert made == []
    make(RUNS[1], tmp_path / "a", fresh=False)
    assert made == [RUNS[1].config]


def test_a_run_that_ends_badly_ends_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "run_job", lambda config, folder, options: 93)
    with pytest.raises(RuntimeError, match="run a ended with exit code 93"):
        make(RUNS[0], tmp_path / "a", fresh=True)


@pytest.mark.parametrize(("asked", "said"), [("a,z", "there is no run 'z'"), ("a", "a pair needs two runs")])
def test_runs_that_make_no_pair_are_refused(
    asked: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prediction", "--compare", "--runs", asked])
    assert prediction.main() == 2
    assert f"--runs = '{asked}': {said}" in capsys.readouterr().err


def test_kept_runs_of_one_machine_are_compared_with_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("article", "other"):
        logged(tmp_path / "h200x2" / "runs" / name, RUNS[0].config)
        (tmp_path / "h200x2" / "runs" / name / "run").rename(tmp_path / "h200x2" / "runs" / f"{name}-run")
        (tmp_path / "h200x2" / "runs" / name).rmdir()
    logged(tmp_path / "alone" / "runs", RUNS[0].config)
    monkeypatch.setattr(prediction, "KEPT_RUNS", tmp_path)
    groups = [[run.name for run in group] for group in prediction.kept_groups()]
    assert groups == [["h200x2/article-run", "h200x2/other-run"]]


def test_every_kept_prediction_is_within_a_point_of_the_measurement() -> None:
    kept = json.loads(prediction.KEPT.read_text(encoding="utf-8"))
    ours = [one for one in kept["rows"] if "/" not in one["run"]]
    assert len(ours) == PAIRS >= 6
    assert max(abs(one["predicted"] - one["measured"]) for one in kept["rows"]) <= LIMIT
