"""A step that ended with an error on one rank was finished by nobody, whatever a peer in its collective logged."""

from __future__ import annotations

import json

import pytest

from holdfast.report.series import find_steps
from tests.goodput.builder import Log, Run, begin, end, expect, ledger_of, train

ABORTED_LOSS = 4.9


def hang(logs: list[Log], at: float, step: int, seconds: float, error: str = "RankShouldRestart") -> float:
    """Rank 0 hangs in a step until it is restarted; rank 1, whose collective is aborted, logs the step like any other.
    Returns when both have left it."""
    logs[0].point(at, "fault", id=f"hang-rank0-step{step}", kind="hang", rank=0, step=step)
    logs[0].span(at, at + seconds, "step", step=step, error=error)
    logs[1].span(at, at + seconds - 0.02, "step", step=step, loss=ABORTED_LOSS)
    end(logs, at + seconds, "exception", error=error, step=step)
    return at + seconds


def five_steps(run: Run) -> list[Log]:
    """Two ranks that have made steps 1 to 5 at second 7."""
    logs = run.ranks(0)
    begin(logs, 1)
    train(logs, 2, 1, 5)
    return logs


def hung_and_restarted(run: Run) -> None:
    """Steps 1 to 5 until 7; step 6 hangs for 3 s; in process from step 4 on: restored at 11."""
    logs = five_steps(run)
    hang(logs, 7, 6, 3.0)  # to 10
    begin(logs, 10.5, restart=1)
    for log in logs:
        log.span(10.5, 11, "restore", step=4)
    train(logs, 11, 5, 8)  # to 15
    end(logs, 15, "complete", restart=1)


def test_a_hang_is_detection_and_no_lost_work_although_a_peer_logged_the_step(run: Run) -> None:
    hung_and_restarted(run)
    ledger = ledger_of(run)
    expect(ledger, init=2, productive=8, lost_work=1, detection=3, restart_in_process=0.5, restore=0.5)
    (recovery,) = ledger.recoveries
    assert (recovery.layer, recovery.lost_steps) == ("in_process", 1)
    assert recovery.detected_s == pytest.approx(3)
    assert ledger.measures.article_infra_goodput == pytest.approx((15 - 4) / 15)
    assert ledger.measures.article_training_goodput == pytest.approx(8 / 15)


def test_an_exception_is_followed_by_the_restart_although_a_peer_logged_the_step(run: Run) -> None:
    logs = five_steps(run)
    logs[0].point(7, "fault", id="exception-rank0-step6", kind="exception", rank=0, step=6)
    logs[0].span(7, 7.25, "step", step=6, error="InjectedFault")
    end(logs[:1], 7.25, "exception", error="InjectedFault", step=6)
    logs[1].span(7.5, 8.5, "step", step=6, loss=ABORTED_LOSS)
    end(logs[1:], 8.5, "exception", error="RankShouldRestart", step=6)
    begin(logs, 9, restart=1)
    train(logs, 10, 6, 7)
    end(logs, 12, "complete", restart=1)
    ledger = ledger_of(run)
    expect(ledger, init=2, productive=7, detection=0.25, restart_in_process=2.75)
    assert ledger.recoveries[0].lost_steps == 0


def test_the_loss_of_such_a_step_is_on_no_curve(run: Run) -> None:
    hung_and_restarted(run)
    steps = find_steps(ledger_of(run))
    assert steps.step[~steps.kept].tolist() == [5]
    assert ABORTED_LOSS not in steps.loss


def test_such_a_step_is_no_part_of_a_run_that_never_came_back(run: Run) -> None:
    logs = five_steps(run)
    hang(logs, 7, 6, 3.0)
    ledger = ledger_of(run)
    expect(ledger, init=2, productive=5, detection=3)
    assert ledger.steps == 5


def test_an_attempt_that_finished_no_other_step_overcame_nothing(run: Run) -> None:
    logs = five_steps(run)
    hang(logs, 7, 6, 3.0)  # to 10
    begin(logs, 10.5, restart=1)
    hang(logs, 11, 6, 2.0)  # to 13
    begin(logs, 13.5, restart=2)
    train(logs, 14, 6, 8)
    end(logs, 17, "complete", restart=2)
    ledger = ledger_of(run)
    assert ledger.recoveries[0].recovered_s == pytest.approx(15 - 7)
    assert (ledger.buckets["productive"], ledger.buckets["lost_work"]) == pytest.approx((8, 0))


def test_a_rank_whose_log_is_cut_off_or_missing_takes_no_step_from_the_others(run: Run) -> None:
    logs = [run.rank(rank, 0, world=3) for rank in range(2)]  # nothing is left of rank 2
    begin(logs, 1)
    train(logs, 2, 1, 5)
    end(logs[:1], 7, "complete")
    lines = logs[1].path.read_text().splitlines(keepends=True)
    logs[1].path.write_text("".join(lines[:-1]) + lines[-1][:-9])
    ledger = ledger_of(run)
    expect(ledger, init=2, productive=5)
    assert ledger.steps == 5


def test_a_step_that_the_same_process_executed_again_counts_although_the_line_of_the_restart_is_damaged(
    run: Run,
) -> None:
    hung_and_restarted(run)
    for log in run.logs:
        lines = log.path.read_text().splitlines()
        kept = [line for line in lines if json.loads(line).get("restart", 0) == 0]
        log.path.write_text("\n".join(kept) + "\n")
    ledger = ledger_of(run)
    assert len(ledger.attempts) == 1
    assert ledger.steps == 8
