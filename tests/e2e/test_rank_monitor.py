"""A rank monitor that dies: its ranks could never be watched again, and the run goes on all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast.config import names
from tests.e2e.harness import Training, members

SETS = (
    "recovery.in_process=true",
    "recovery.process_group_timeout_s=5",
    "recovery.in_process_soft_timeout_s=7",
    "recovery.in_process_hard_timeout_s=10",
    "recovery.in_process_barrier_timeout_s=12",
    "training.steps=30",
    "training.min_step_s=0.2",
    "checkpoint.interval_steps=5",
)
"""The barrier's limit is what the other rank waits for one whose pod ended before it was there."""


def test_a_rank_monitor_that_dies_costs_its_pod_and_nothing_else(tmp_path: Path) -> None:
    """Its rank ends, the next one finds no monitor, and a new pod has one. Without that the stop rule ended the run."""
    with Training(tmp_path / "out", *SETS) as training:
        training.until_finished(8)
        launcher = training.process("workers-1", "launcher")
        below = [member for member in members(training.pod("workers-1")) if member.parent == launcher]
        (monitor,) = [member.pid for member in below if member.role == "launcher"]
        os.kill(monitor, signal.SIGKILL)
        assert training.wait() == 0, training.output
    assert "the rank monitor of this node cannot be reached" in training.output
    (ended,) = [pod for pod, code in training.pod_exits().items() if code == names.EXIT_RETRY]
    said = (training.out / "pods" / "logs" / f"{ended}.log").read_text()
    assert "pod ends with 1: a rank monitor of this pod is gone, and only a new launcher has another" in said
    assert training.damage(30) == []
