"""SIGKILL to the processes that look after others: PID 1 of a pod, or its launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import RunFiles, Training, alive, members, until

SETS = ("training.min_step_s=0.25", "checkpoint.interval_steps=2")
BACK_S = 60
"""Longest way back to training on two busy cores."""


def kill_and_await_its_successor(training: Training, stem: str, role: str) -> str:
    """SIGKILL; returns the token of the next pod. Nothing of the old pod may live for 10 s more."""
    pod = training.pod(stem)
    belonging = [member.pid for member in members(pod)]
    os.kill(training.process(stem, role), signal.SIGKILL)
    until(f"nothing of {pod} is alive", lambda: not alive(belonging), 10)
    assert not members(pod)
    return training.until(f"a pod after {pod}", lambda: new if (new := training.pod(stem)) != pod else None, BACK_S)


def until_it_trains(training: Training) -> None:
    """Wait until an attempt that has not begun yet has finished a step; never longer than BACK_S."""
    known = len({event.process.file for event in training.events("first_step")})
    training.until(
        "it trains again", lambda: len({e.process.file for e in training.events("first_step")}) >= known + 2, BACK_S
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_pod_that_is_killed_again_and_again_rejoins_and_so_does_everybody_after_the_control_pod(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-13: node B's pod twice in a row, once more when training goes on, then the pod that keeps the store."""
    with Training(tmp_path / "out", *SETS) as training:
        training.until_finished(4)
        kill_and_await_its_successor(training, "workers-1", "supervisor")
        kill_and_await_its_successor(training, "workers-1", "supervisor")
        until_it_trains(training)
        kill_and_await_its_successor(training, "workers-1", "supervisor")
        until_it_trains(training)
        kill_and_await_its_successor(training, "control", "supervisor")
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    generations = {event.process.generation for event in training.events("first_step")}
    assert generations == {1, 2}
    assert all((event.whole("step") or 0) >= 2 for event in training.events("restore"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_outlives_a_killed_launcher_and_its_pod_is_replaced(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-15: ft_launcher alone would leave its ranks and rank monitors alive, and ranks their writers."""
    with Training(tmp_path / "out", *SETS) as training:
        training.until_finished(4)
        kinds = [member.role for member in members(training.pod("workers-0"))]
        assert kinds.count("launcher") >= 2 and "rank" in kinds and "other" in kinds  # monitor, rank, writer
        kill_and_await_its_successor(training, "workers-0", "launcher")
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    codes = [event.whole("code") for event in training.events("pod_end", source="supervisor")]
    assert sorted(code for code in codes if code is not None) == [0, 0, 0, 1]
