"""One run directory has one owner: another job is refused, and a generation that was cut off changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.goodput.timeline import Event
from tests.e2e.harness import RunFiles, stopped, until
from tests.e2e.pods import Pod, Pods, free_port


def of_generation(run: RunFiles, generation: int, name: str) -> list[Event]:
    """Events of one generation's ranks."""
    return [event for event in run.events(name) if event.process.generation == generation]


def refused_commits(run: RunFiles) -> list[Event]:
    """Attempts of the first generation that ended because another one owns the run."""
    return [e for e in of_generation(run, 1, "attempt_end") if "StaleGeneration" in e.text("error")]


def assert_refused(other: Pod, owner: Pod) -> None:
    """Whoever is refused learns who owns the run."""
    assert other.wait(30) == names.EXIT_PREEMPTED
    who = f"host {os.uname().nodename}, pod job-0-control-0, pid {owner.pid}, for "
    assert f"owned by a live process: generation 1, {who}" in other.log


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_generation_that_is_cut_off_but_alive_commits_nothing_after_its_successor_has_come(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """Fencing (a, c): a second job is refused. Then the first generation's supervisors hang, its JobSet makes a new
    generation, and nobody stops the old ranks: they train on, and their next commit is refused."""
    with Pods(tmp_path / "out", "training.min_step_s=0.5", "checkpoint.interval_steps=2") as pods:
        old = pods.start(attempt=0)
        until("a commit", lambda: pods.committed())
        assert_refused(pods.pod(names.CONTROL, 0, free_port(), job="other"), old[0])
        with stopped([pod.pid for pod in old]):
            new = pods.start(attempt=1)
            until("the old generation tries to commit", lambda: refused_commits(pods), 60)
            until("the new generation commits", lambda: of_generation(pods, 2, "commit"))
        # Those that were cut off are back, and see by themselves that their time is over.
        assert [pod.wait(15) for pod in old] == [names.EXIT_PREEMPTED] * 3
        assert "generation 1 no longer owns this run; generation 2 (pod job-1-control-0, host" in old[1].log
        assert [pod.wait() for pod in new] == [0, 0, 0]
    (taken,) = [
        e.start for e in pods.events("launcher_start", source="supervisor") if e.process.pod == "job-1-control-0"
    ]
    assert max(event.end for event in of_generation(pods, 1, "step")) > taken, "the old ranks were not alive"
    commits = of_generation(pods, 1, "commit")
    assert commits and max(event.start for event in commits) < taken
    complete = pods.record(names.COMPLETE)
    assert complete is not None and complete["attempt"].startswith("g2-")
    assert {pods.marker(step)["generation"] for step in pods.committed()} == {2}
    assert pods.record(names.TERMINAL) is None
    assert_same_weights(pods)
