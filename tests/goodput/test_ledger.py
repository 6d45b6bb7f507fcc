"""Timelines whose buckets were computed by hand: runs that nothing went wrong in, and logs that lack something."""

from __future__ import annotations

import pytest

from tests.goodput.builder import Machine, Run, begin, end, expect, ledger_of, train


def test_a_clean_run_is_queue_init_steps_and_the_final_save(run: Run) -> None:
    runner = run.process(0, "runner")
    runner.point(0, "run_start")
    run.process(2, "supervisor", pod="worker-0", role="worker").point(2, "pod_start")
    logs = run.ranks(3)
    begin(logs, 5)
    for log in logs:
        log.span(3, 5, "import")
        log.span(5, 6, "process_group")
        log.span(6, 8, "build")
    train(logs, 8, 1, 10)
    for log in logs:
        log.span(12, 12.2, "data", step=5)
    logs[0].span(13.0, 13.3, "stage", step=6)
    logs[1].span(13.1, 13.2, "stage", step=6)
    logs[0].span(13.3, 16.0, "persist", step=6)
    logs[0].span(18, 19, "drain", step=10)
    end(logs, 19, "complete")
    runner.point(20, "run_end", code=0)

    ledger = ledger_of(run)
    expect(
        ledger,
        queue=2,
        init=6,
        productive=9.5,
        data_stall=0.2,
        checkpoint_blocked=0.3,
        checkpoint_wait=1,
        other=1,
    )
    assert ledger.measures.ettr == pytest.approx(9.5 / 20)
    assert ledger.goodput_total == pytest.approx(9.5 / 18)
    assert ledger.goodput == pytest.approx(8.5 / 11)  # from second 9, the end of the first step
    assert (ledger.ranks, ledger.steps, ledger.recoveries, ledger.anomalies) == (2, 10, (), ())


def test_the_time_between_two_calls_of_holdfast_run_is_queue_and_no_recovery(run: Run) -> None:
    first = run.process(0, "runner")
    first.point(0, "run_start")
    run.process(1, "supervisor", pod="worker-0").point(1, "pod_start")
    logs = run.ranks(1)
    train(logs, 2, 1, 5)  # to 7
    end(logs, 7, "preempted", step=5)
    first.point(8, "run_end", code=130)
    second = run.process(1000, "runner")
    second.point(1000, "run_start")
    run.process(1001, "supervisor", pod="worker-0").point(1001, "pod_start")
    new = run.ranks(1001, generation=2)
    for log in new:
        log.span(1003, 1004, "restore", step=5)
    train(new, 1004, 6, 7)
    end(new, 1006, "complete")
    second.point(1006, "run_end", code=0)
    ledger = ledger_of(run)
    expect(ledger, queue=1 + 993, init=1 + 2, productive=7, other=1, restore=1)
    assert ledger.recoveries == ()


def test_a_runner_that_was_killed_and_called_again_leaves_a_gap_of_queue_time(run: Run) -> None:
    run.process(0, "runner").point(0, "run_start")
    run.process(0, "supervisor", pod="worker-0").point(0, "pod_start")
    train(run.ranks(0), 1, 1, 5)  # to 6, where everything was killed at once
    run.process(500, "runner").point(500, "run_start")
    run.process(501, "supervisor", pod="worker-0").point(501, "pod_start")
    new = run.ranks(501, generation=2)
    train(new, 503, 5, 6)
    ledger = ledger_of(run)
    expect(ledger, init=1 + 2, productive=6, lost_work=1, queue=495)
    assert ledger.recoveries == ()


def test_a_rank_without_a_log_is_named_and_the_others_speak_for_it(run: Run) -> None:
    log = run.rank(0, 0, world=2)
    train([log], 1, 1, 4)
    end([log], 5, "complete")
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=4)
    assert [(anomaly.kind, anomaly.where) for anomaly in ledger.anomalies] == [("missing_rank", "g1-c0-r0")]


def test_an_empty_log_gives_zeros(run: Run) -> None:
    ledger = ledger_of(run)
    expect(ledger)
    assert (ledger.wall_s, ledger.goodput, ledger.recoveries) == (0, 0, ())


def test_a_run_without_any_rank_waits_in_the_queue_and_then_initializes(run: Run) -> None:
    runner = run.process(0, "runner")
    runner.point(0, "run_start")
    run.process(3, "supervisor", pod="worker-0").point(3, "pod_start")
    runner.point(10, "run_end", code=1)
    expect(ledger_of(run), queue=3, init=7)


def test_ranks_on_two_machines_account_as_on_one(run: Run) -> None:
    near, far = run.rank(0, 0), run.rank(1, 0, machine=Machine(boot="boot-b", mono=90.0))
    train([near, far], 1, 1, 4)
    far.span(2, 2.5, "data", step=2)
    end([near, far], 5, "complete")
    expect(ledger_of(run), init=1, productive=3.5, data_stall=0.5)


def test_an_evaluation_between_two_steps_is_told_apart_and_is_no_lost_work_when_a_fault_strikes_in_it(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 1, 1, 2)  # steps of one second: done at 3
    for log in logs:
        log.span(3, 4.5, "eval", step=2)
    end(logs, 4.5, "complete")
    expect(ledger_of(run), init=1, productive=2, other=1.5)


def test_the_numbers_do_not_depend_on_the_number_of_ranks(run: Run) -> None:
    logs = run.ranks(0, count=40)
    train(logs, 1, 1, 4)
    logs[17].span(2, 2.5, "data", step=2)
    end(logs, 5, "complete")
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=3.5, data_stall=0.5)
    assert ledger.ranks == 40


def test_saves_are_counted_once_whatever_the_number_of_ranks(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 1, 1, 6)
    for log in logs:
        log.span(2, 2.25, "stage", step=2)
        log.span(2.25, 3, "persist", step=2)
        log.point(5, "save_failed", step=4, error="no space left on device")
        log.point(0.5, "skipped", folder="step-00000009", why="no COMMITTED.json")
    logs[1].span(2.25, 2.5, "checkpoint_wait", step=2)
    logs[0].point(3, "commit", step=2)
    saves = ledger_of(run).saves
    assert saves.committed == (2,)
    assert saves.failed == ((4, "no space left on device"),)
    assert saves.skipped == (("step-00000009", "no COMMITTED.json"),)
    assert (saves.blocked_s, saves.persist_s) == ((0.5,), (0.75,))
