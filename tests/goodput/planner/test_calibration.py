"""A run in which everything lasted as given is calibrated to what was given; and it predicts another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import ConfigError, RunConfig, load_profile
from holdfast.config.failure_rates import FAILURE_RATES
from holdfast.goodput.ledger import account
from holdfast.goodput.planner import Inputs, Setting, calibrated, configured, default_inputs, durations_of, policy_of
from holdfast.goodput.planner.replay import faults_of, predicted
from holdfast.goodput.reader import read_run
from holdfast.goodput.simulate import Fleet, GivenFault, simulate, timeline_of
from tests.goodput import builder
from tests.goodput.planner.jobs import FAULTS, calibrated_on_imagined, given_inputs

TRUTH = {
    "step_s": 0.3,
    "data_stall_s": 0.01,
    "first_step_s": 0.2,
    "init_s": 9.0,
    "shutdown_s": 2.5,
    "shared.blocked_s": 0.001,
    "shared.hidden_s": 0.05,
    "shared.background_s": 0.9,
    "shared.restore_s": 0.7,
    "exception.in_process.detection_s": 0.02,
    "exception.in_process.restart_s": 0.4,
    "hang.in_process.detection_s": 4.2,
    "hang.in_process.restart_s": 0.5,
    "rank_sigkill.in_job.detection_s": 0.1,
    "rank_sigkill.in_job.restart_s": 7.5,
}


def config(*overrides: str) -> RunConfig:
    return load_profile("cpu-demo", ["training.steps=150", *overrides])


def test_what_a_run_shows_takes_the_place_of_the_defaults() -> None:
    found = calibrated_on_imagined(config(), given_inputs(config(), TRUTH))
    close = {name: pytest.approx(value, rel=0.02, abs=0.01) for name, value in TRUTH.items()}
    # What a write hides is spread over the steps that it meets, and the median step hides a part of it.
    close["shared.hidden_s"] = pytest.approx(TRUTH["shared.hidden_s"], abs=0.03)
    assert {name: found[name] for name in TRUTH} == close


def test_what_a_run_does_not_show_keeps_its_default_and_is_named() -> None:
    defaults = default_inputs(config(), 2)
    found = calibrated_on_imagined(config(), given_inputs(config(), TRUTH))
    assert {"person_s", "repair_s", "node_loss.node.detection_s", "local.restore_s"} <= set(found.kept)
    assert not set(found.kept) & TRUTH.keys()
    assert all(found.by_name[name] == defaults.by_name[name] for name in found.kept)
    assert all(found.by_name[name].basis == "measured: imagined" for name in TRUTH)


def test_restarts_of_a_layer_stand_for_kinds_that_did_not_strike() -> None:
    found = calibrated_on_imagined(config(), given_inputs(config(), TRUTH))
    assert found["bad_gpu.in_job.restart_s"] == found["rank_sigkill.in_job.restart_s"]


def test_with_a_standby_its_saving_is_put_back_so_that_a_plan_can_take_it_away_again() -> None:
    truth = given_inputs(config(), TRUTH)
    on, off = (
        calibrated_on_imagined(config(f"recovery.standby={value}"), truth)["rank_sigkill.in_job.restart_s"]
        for value in ("true", "false")
    )
    assert on == pytest.approx(off, abs=0.01) == pytest.approx(TRUTH["rank_sigkill.in_job.restart_s"], abs=0.01)


def test_a_layer_that_left_a_kind_to_a_higher_one_does_not_cure_it() -> None:
    """Layer 1 is on, and the hang was overcome by layer 2: a plan must not count on layer 1."""
    truth = given_inputs(config(), TRUTH)
    truth = Inputs(truth.by_name, frozenset({("hang", "in_process")}))
    found = calibrated_on_imagined(config(), truth)
    assert ("hang", "in_process") in found.not_cured
    assert ("exception", "in_process") not in found.not_cured


@pytest.mark.parametrize("interval", [7, 10, 13])
def test_one_run_predicts_another_with_other_faults_and_another_interval(interval: int) -> None:
    """Within 0.003 where both last exactly as given: what is left is what a ledger cannot see."""
    other = config(f"checkpoint.interval_steps={interval}", "seed=7")
    truth = given_inputs(other, TRUTH)
    faults = [
        GivenFault(kind="rank_sigkill", at_step=3 * interval + interval - 1),
        GivenFault(kind="exception", at_step=8 * interval + interval - 1),
    ]
    one = Setting(config=other, nodes=2, rate=FAILURE_RATES["none"], inputs=truth)
    durations, policy = durations_of(one, configured(one)), policy_of(one, configured(one))
    run = simulate(
        durations, Fleet(nodes=2, spares=1, repair_s=5.0, repair_varies=False), policy, steps=150, faults=faults
    )
    measured = account(timeline_of(run, durations))
    inputs = calibrated_on_imagined(config(), given_inputs(config(), TRUTH))
    found = predicted(inputs, other, faults_of(measured))
    assert [one.lost_steps for one in found.run.interruptions] == [one.lost_steps for one in measured.recoveries]
    assert found.ledger.goodput == pytest.approx(measured.goodput, abs=0.003)


def test_a_prediction_names_the_cures_that_the_calibrating_run_did_not_show() -> None:
    inputs = calibrated_on_imagined(config(), given_inputs(config(), TRUTH), FAULTS[:1])
    found = predicted(inputs, config(), FAULTS[:2])
    assert found.not_calibrated == {"hang.in_process.detection_s"}


def test_a_run_whose_attempts_have_one_step_each_tells_nothing() -> None:
    one = Setting(config=config(), nodes=2, rate=FAILURE_RATES["none"], inputs=given_inputs(config(), TRUTH))
    durations, policy = durations_of(one, configured(one)), policy_of(one, configured(one))
    timeline = timeline_of(simulate(durations, Fleet(nodes=2), policy, steps=1, faults=[]), durations)
    with pytest.raises(ConfigError, match="--from = 'short': it has no attempt with two finished steps"):
        calibrated(default_inputs(config(), 2), timeline, account(timeline), config(), "short")


def test_a_node_that_vanished_a_step_late_is_taken_to_vanish_then(tmp_path: Path) -> None:
    """Asked for at step 10, which was finished before the node was gone. A rank's own fault is at its step."""
    log = builder.Run(tmp_path)
    runner = log.process(0.0, "runner")
    first = log.ranks(1.0)
    builder.begin(first, 2.0)
    at = builder.train(first, 3.0, 1, 10)
    runner.point(at - 0.5, "fault", id="node_loss-rank0-step10", kind="node_loss", rank=0, step=10)
    second = log.ranks(at + 5, cycle=1)
    builder.begin(second, at + 5)
    at = builder.train(second, at + 6, 11, 14)
    second[1].point(at, "fault", id="exception-rank1-step15", kind="exception", rank=1, step=15)
    builder.end(second, at, "exception", step=15)
    builder.begin(second, at + 1, restart=1)
    builder.train(second, at + 2, 11, 16)
    log.close()
    found = [(fault.kind, fault.at_step) for fault in faults_of(builder.ledger_of(log))]
    assert found == [("node_loss", 11), ("exception", 15)]


def calibrated_on(run: builder.Run) -> Inputs:
    """Defaults, calibrated on a run that a test wrote."""
    timeline = read_run(run.path)
    return calibrated(default_inputs(config(), 2), timeline, account(timeline), config(), "written")


def steps(log: builder.Log, lengths: list[float]) -> None:
    """Steps 1.. of these lengths, from second 1 on."""
    for step, length in enumerate(lengths, start=1):
        at = 1.0 + sum(lengths[: step - 1])
        log.span(at, at + length, "step", step=step)


def test_each_tier_has_what_its_own_writes_hide(run: builder.Run) -> None:
    (log,) = run.ranks(0, count=1)
    steps(log, [*[1.0] * 7, 2.0, 1.0, 1.0, 1.5, 1.0])
    log.span(8.0, 9.9, "write", step=7)
    log.span(12.0, 13.4, "write", step=10, tier="local")
    found = calibrated_on(run)
    assert (found["shared.hidden_s"], found["local.hidden_s"]) == pytest.approx((1.0, 0.5))


def test_what_writes_hide_keeps_its_default_where_no_step_was_undisturbed(run: builder.Run) -> None:
    (log,) = run.ranks(0, count=1)
    steps(log, [1.0] * 8)
    log.span(1.0, 8.5, "write", step=1)
    log.span(1.0, 8.5, "write", step=2, tier="local")
    assert {"shared.hidden_s", "local.hidden_s"} <= set(calibrated_on(run).kept)


def test_saves_of_one_step_before_and_after_a_restart_in_process_are_two(run: builder.Run) -> None:
    (log,) = run.ranks(0, count=1)
    builder.begin([log], 0.5)
    builder.train([log], 1, 1, 4)
    builder.begin([log], 6, restart=1)
    builder.train([log], 7, 3, 6)
    for at, seconds in ((4.0, 0.25), (9.0, 0.75)):
        log.span(at, at + seconds, "stage", step=3)
        log.span(at, at + 2 * seconds, "write", step=3)
    found = calibrated_on(run)
    assert (found["shared.blocked_s"], found["shared.background_s"]) == pytest.approx((0.5, 1.0))


def test_a_simulated_save_to_the_local_tier_is_told_apart() -> None:
    local = config("checkpoint.local.interval_steps=5")
    truth = given_inputs(local, {**TRUTH, "local.blocked_s": 0.002, "local.hidden_s": 0.01, "local.background_s": 0.2})
    found = calibrated_on_imagined(local, truth)
    assert found["local.background_s"] == pytest.approx(0.2)
    assert found["shared.background_s"] == pytest.approx(0.9)
