"""Timelines whose buckets and recovery times were computed by hand: each kind of failure."""

from __future__ import annotations

import pytest

from tests.goodput.builder import Run, begin, end, expect, ledger_of, train


def test_an_exception_in_process_that_rolls_back_three_steps_counts_them_once_as_lost(run: Run) -> None:
    logs = run.ranks(0)
    begin(logs, 1)
    train(logs, 2, 1, 13)  # to 15
    logs[1].point(15.1, "fault", id="exception-rank1-step14", kind="exception", rank=1, step=14)
    for log in logs:
        log.span(15, 15.4, "step", step=14, error="InjectedFault")
    end(logs[1:], 15.4, "exception", error="InjectedFault", step=14)
    end(logs[:1], 15.6, "exception", error="RankShouldRestart", step=14)
    begin(logs, 16, restart=1)
    for log in logs:
        log.span(16, 16.5, "process_group")
        log.span(16.5, 17, "build")
        log.span(17, 17.5, "restore", step=10)
    train(logs, 17.5, 11, 20)  # to 27.5
    end(logs, 27.5, "complete", restart=1)

    ledger = ledger_of(run)
    expect(
        ledger,
        init=2,
        productive=20,
        lost_work=3 + 0.1,  # steps 11 to 13, and the beginning of 14
        detection=0.3,
        restart_in_process=1.6,
        restore=0.5,
    )
    (recovery,) = ledger.recoveries
    assert (recovery.fault.kind, recovery.fault.rank, recovery.fault.step) == ("exception", 1, 14)
    assert (recovery.layer, recovery.lost_steps) == ("in_process", 3)
    assert recovery.detected_s == pytest.approx(0.3)
    assert recovery.recovered_s == pytest.approx(18.5 - 15.1)
    assert dict(recovery.breakdown) == pytest.approx(
        {
            "noticed": 0.3,
            "stopped": 0.2,
            "started": 0.4,
            "imported": None,
            "group": 0.5,
            "model": 0.5,
            "restored": 0.5,
            "first_step": 1.0,
        }
    )


def killed_in_job(run: Run, pod_of_rank_1: str = "worker-1") -> None:
    """Rank 1 is killed during step 6; the launcher restarts all ranks, which go on from step 4."""
    supervisor = run.process(0, "supervisor", pod="worker-0", role="worker")
    supervisor.point(0, "pod_start")
    logs = run.ranks(1)
    begin(logs, 2)
    train(logs, 3, 1, 5)  # to 8
    logs[1].point(8.25, "fault", id="rank_sigkill-rank1-step6", kind="rank_sigkill", rank=1, step=6)
    supervisor.point(8.75, "launcher_event", event="failure_detected", cycle=1)
    supervisor.point(9.25, "launcher_event", event="worker_terminated", cycle=1)
    new = [run.rank(0, 10, cycle=1), run.rank(1, 10.5, cycle=1, pod=pod_of_rank_1)]
    begin(new, 12)
    for log in new:
        log.span(11, 12, "import")
        log.span(12, 12.5, "process_group")
        log.span(12.5, 13, "build")
        log.span(13, 13.25, "data_open")
        log.span(13.25, 14, "restore", step=4)
    train(new, 14, 5, 8)  # to 18
    end(new, 18, "complete")


def test_a_killed_rank_is_an_in_job_restart_with_every_part_timed(run: Run) -> None:
    killed_in_job(run)
    ledger = ledger_of(run)
    expect(
        ledger,
        init=3,
        productive=8,
        lost_work=1.25,
        detection=0.5,
        restart_in_job=5.25 - 0.75,
        restore=0.75,
    )
    (recovery,) = ledger.recoveries
    assert (recovery.layer, recovery.lost_steps, recovery.detected_s) == ("in_job", 1, 0.5)
    assert recovery.recovered_s == pytest.approx(15 - 8.25)
    parts = {
        "noticed": 0.5,
        "stopped": 0.5,
        "started": 1.25,
        "imported": 1.5,
        "group": 0.5,
        "model": 0.75,
        "restored": 0.75,
        "first_step": 1.0,
    }
    assert dict(recovery.breakdown) == pytest.approx(parts)
    assert sum(s for s in recovery.breakdown.values() if s) == pytest.approx(recovery.recovered_s)


def test_the_same_restart_on_a_spare_pod_is_a_node_replacement(run: Run) -> None:
    killed_in_job(run, pod_of_rank_1="worker-2")
    ledger = ledger_of(run)
    assert ledger.recoveries[0].layer == "node"
    assert ledger.buckets["restart_in_job"] == 0
    assert ledger.buckets["node_replacement"] == pytest.approx(4.5)


def test_a_spare_that_gets_the_seat_of_a_pod_that_lives_on_is_an_in_job_restart(run: Run) -> None:
    killed_in_job(run, pod_of_rank_1="worker-2")
    run.process(0, "supervisor", role="worker", pod="worker-1").point(9.5, "launcher_event", event="rendezvous_started")
    ledger = ledger_of(run)
    assert ledger.recoveries[0].layer == "in_job"
    assert ledger.buckets["node_replacement"] == 0


def test_ranks_that_change_seats_among_the_same_pods_are_an_in_job_restart(run: Run) -> None:
    old = run.ranks(0)
    train(old, 1, 1, 4)
    new = [run.rank(0, 8, cycle=1, pod="worker-1"), run.rank(1, 8, cycle=1, pod="worker-0")]
    train(new, 9, 5, 6)
    assert ledger_of(run).recoveries[0].layer == "in_job"


def test_a_lost_node_is_noticed_by_its_peers_and_not_by_the_runner_that_killed_it(run: Run) -> None:
    runner = run.process(0, "runner")
    runner.point(0, "run_start")
    for index in range(2):
        runner.point(0, "pod_created", pod=f"worker-{index}", node=f"node-{index}")
        run.process(1, "supervisor", pod=f"worker-{index}").point(1, "pod_start")
    logs = run.ranks(1)
    train(logs, 2, 1, 6)  # to 8
    runner.point(8.5, "fault", id="node_loss-rank1-step7", kind="node_loss", rank=1, step=7)
    runner.point(8.5, "node_killed", node="node-1")
    runner.point(8.5, "pod_exit", pod="worker-1", code=137)
    end(logs[:1], 10.5, "exception", error="RuntimeError", step=7)
    new = [run.rank(0, 13, cycle=1), run.rank(1, 13, cycle=1, pod="worker-2")]
    for log in new:
        log.span(14, 15, "restore", step=5)
    train(new, 15, 6, 8)  # to 18
    end(new, 18, "complete")
    runner.point(18, "run_end", code=0)

    ledger = ledger_of(run)
    expect(
        ledger,
        queue=1,
        init=1,
        productive=8,
        lost_work=1.5,
        detection=2,
        node_replacement=3.5,
        restore=1,
    )
    (recovery,) = ledger.recoveries
    assert (recovery.layer, recovery.lost_steps) == ("node", 1)
    assert recovery.detected_s == pytest.approx(2)
    assert recovery.recovered_s == pytest.approx(7.5)


def test_a_new_generation_after_control_loss_is_a_node_replacement_and_steps_after_the_fault_count(run: Run) -> None:
    runner = run.process(0, "runner")
    runner.point(0, "run_start")
    run.process(0, "supervisor", pod="control", role="control").point(0, "pod_start")
    logs = run.ranks(0)
    train(logs, 1, 1, 9)  # to 10: steps 6 to 9 end after the control pod was lost
    runner.point(6, "fault", id="control_loss-rank0-step6", kind="control_loss", rank=0, step=6)
    runner.point(6.5, "pod_exit", pod="control", code=137)
    new = run.ranks(15, generation=2)
    for log in new:
        log.span(16, 17, "restore", step=8)
    train(new, 17, 9, 10)
    end(new, 19, "complete")
    ledger = ledger_of(run)
    # Steps 1 to 8 survive; 9 was executed twice. Between its end and the restore the job was being replaced.
    expect(ledger, init=1, productive=10, lost_work=1, node_replacement=6, restore=1)
    (recovery,) = ledger.recoveries
    assert (recovery.layer, recovery.lost_steps) == ("node", 1)
    assert recovery.detected_s == pytest.approx(0.5)
    assert recovery.recovered_s == pytest.approx(12)


def test_a_stale_generation_that_still_writes_gets_neither_time_nor_credit(run: Run) -> None:
    stale = run.ranks(0)
    train(stale, 1, 1, 12)  # to 13: unreachable, but alive, and going on
    new = run.ranks(6, generation=2, pod=None)
    for log in new:
        log.span(8, 9, "restore", step=4)
    train(new, 9, 5, 8)  # to 13
    end(new, 13, "complete")
    ledger = ledger_of(run)
    # Until 6 the job was generation 1's: steps 1 to 4 survive, 5 is lost. From then on it is generation 2's alone.
    expect(ledger, init=1, productive=8, lost_work=1, node_replacement=2, restore=1)
    assert ledger.steps == 8


def test_a_failure_that_nobody_injected_is_a_recovery_of_kind_unknown(run: Run) -> None:
    supervisor = run.process(0, "supervisor", pod="worker-0")
    logs = run.ranks(0)
    train(logs, 1, 1, 4)  # to 5
    supervisor.point(7, "launcher_event", event="failure_detected", cycle=1)
    new = run.ranks(9, cycle=1)
    for log in new:
        log.span(10, 11, "restore", step=4)
    train(new, 11, 5, 6)
    end(new, 13, "complete")
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=6, detection=2, restart_in_job=3, restore=1)
    (recovery,) = ledger.recoveries
    assert (recovery.fault.kind, recovery.lost_steps) == ("unknown", 0)
    assert recovery.recovered_s == pytest.approx(7)


def test_an_attempt_that_dies_on_the_way_is_a_part_of_the_recovery_it_belongs_to(run: Run) -> None:
    supervisor = run.process(0, "supervisor", pod="worker-0")
    logs = run.ranks(0)
    begin(logs, 0.5)
    train(logs, 1, 1, 4)  # to 5
    logs[1].point(5, "fault", id="rank_sigkill-rank1-step5", kind="rank_sigkill", rank=1, step=5)
    end(logs[:1], 5.5, "exception", error="RuntimeError", step=5)
    begin(logs[:1], 6, restart=1)  # rank 0 restarts in process; its peer is dead
    supervisor.point(6.5, "launcher_event", event="failure_detected", cycle=1)
    new = run.ranks(9, cycle=1)
    train(new, 11, 5, 6)
    end(new, 13, "complete")
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=6, detection=0.5, restart_in_job=5.5)
    (recovery,) = ledger.recoveries
    assert (recovery.fault.kind, recovery.layer) == ("rank_sigkill", "in_job")


def test_steps_before_the_last_commit_of_a_run_that_never_came_back_are_not_called_lost(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 1, 1, 5)
    end(logs, 6.5, "exception", error="RuntimeError", step=6)
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=5, detection=0.5)
    (recovery,) = ledger.recoveries
    assert (recovery.layer, recovery.recovered_s) == (None, None)
    assert recovery.detected_s == pytest.approx(0.5)
