"""Urgent saves through the real manifest: a node, or all of them, are asked to go between two regular saves."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import RunFiles, Training, until
from tests.e2e.pods import Pods, free_port

NEVER = "checkpoint.interval_steps=20"
"""No regular save before the last step of cpu-test."""
TERM_S = 40
SETS = (NEVER, "training.min_step_s=0.3", f"recovery.term_timeout_s={TERM_S}", "cluster.grace_period_s=60")
"""Time enough on a busy machine, where the writer may still be importing torch."""


STARTED_S = 60
"""Pods train by then, also on a busy machine."""


def urgent_step(run: RunFiles, ranks: int = 2) -> int:
    """The one step after which all ranks of the first attempt have saved."""
    saves = [event for event in run.events("urgent_save") if event.process.cycle == 0]
    assert len(saves) == ranks and all(event.fields["committed"] for event in saves)
    (step,) = {event.whole("step") for event in saves}
    assert step is not None
    return step


def ask_to_go(training: Training, pod: str) -> None:
    """SIGTERM to PID 1 of a pod, as in a drain."""
    (stem,) = re.findall(r"workers-\d+", pod)
    os.kill(training.process(stem, "supervisor"), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_process", ["false", "true"])
def test_a_node_that_is_asked_to_go_costs_no_step_and_a_spare_goes_on(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None], in_process: str
) -> None:
    sets = (*SETS, "recovery.spares=1", f"recovery.in_process={in_process}")
    with Training(tmp_path / "out", *sets) as training:
        training.until_finished(4)
        gone = next(event.process.pod for event in training.events("attempt_start") if event.process.rank == 1)
        ask_to_go(training, gone)
        assert training.wait() == 0, training.output
    step = urgent_step(training)
    assert 4 < step < 20
    assert training.pod_exits()[gone] == names.EXIT_PREEMPTED
    ends = [event for event in training.events("attempt_end") if event.process.cycle == 0]
    assert [event.text("outcome") for event in ends] == ["preempted", "preempted"]
    later = [event for event in training.events("restore") if event.process.cycle > 0]
    assert {event.whole("step") for event in later} == {step}
    (recovery,) = training.ledger().recoveries
    assert recovery.lost_steps == 0
    assert not list(training.run_dir.glob("attempts/*.rank*.json")), "the stop rule does not count it"
    assert_same_weights(training)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_deleted_goes_on_from_the_step_at_which_it_was_told_to_end(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """SIGTERM to all pods at once: the store, in the control pod, is there until the ranks have left."""
    out = tmp_path / "out"
    with Training(out, *SETS) as first:
        first.until_finished(4)
        first.signal(signal.SIGTERM)
        assert first.wait(TERM_S + 10) == 128 + signal.SIGTERM
        assert set(first.pod_exits().values()) == {names.EXIT_PREEMPTED}
    step = urgent_step(first)
    assert first.committed() == [step]
    with Training(out, command=["resume", str(out)]) as second:
        assert second.wait() == 0, second.output
    restored = [event for event in second.events("restore") if event.process.generation == 2]
    assert {event.whole("step") for event in restored} == {step}
    assert_same_weights(second)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_control_pod_takes_its_workers_along(tmp_path: Path) -> None:
    """Drained alone, it asks them to save and leave and stays until they have; without it nothing can be committed."""
    with Pods(tmp_path / "out", *SETS) as pods:
        control, *workers = pods.start()
        until("step 4 is finished", lambda: pods.finished() >= 4)
        control.terminate()
        assert [pod.wait(TERM_S + 10) for pod in (control, *workers)] == [names.EXIT_PREEMPTED] * 3
    assert pods.committed() == [urgent_step(pods)]
    assert all("the control pod leaves" in pod.log for pod in workers)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_before_the_capacity_ends_all_save_and_leave_and_nothing_starts_again(tmp_path: Path) -> None:
    begins = datetime.now(UTC) + timedelta(seconds=STARTED_S)
    ends = (begins + timedelta(seconds=100)).isoformat()
    sets = (*SETS, f"cluster.capacity_ends_at={ends}", "recovery.leave_before_s=100", "training.steps=1000")
    with Pods(tmp_path / "out", *sets) as pods:
        started = pods.start()
        assert [pod.wait(STARTED_S + TERM_S + 10) for pod in started] == [names.EXIT_PREEMPTED] * 3
        step = urgent_step(pods)
        assert step in pods.committed()
        again = [pods.pod(role, 0, free_port(), attempt=1) for role in (names.CONTROL, "worker")]
        assert [pod.wait(30) for pod in again] == [names.EXIT_PREEMPTED] * 2
    assert pods.finished() == step
    assert all("cluster.capacity_ends_at" in pod.log and "starting" not in pod.log for pod in again)
