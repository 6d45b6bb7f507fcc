"""SIGTERM to all of a run, as when its job is deleted, and to one rank only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import RunFiles, Training

GRACE_S = 30
"""Grace period of the control pod; that of the workers is 10 s (cluster.grace_period_s)."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_deleted_and_applied_again_goes_on_from_its_last_commit(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-03, and fencing (b): SIGTERM to everything, a new generation; then SIGTERM to one rank, a new cycle."""
    out = tmp_path / "out"
    with Training(out, "training.min_step_s=0.2", "checkpoint.interval_steps=3") as first:
        first.until("a commit", lambda: first.committed())
        since = time.monotonic()
        first.signal(signal.SIGTERM)
        assert first.wait(GRACE_S + 5) == 128 + signal.SIGTERM
        assert time.monotonic() - since < GRACE_S
        assert set(first.pod_exits().values()) == {names.EXIT_PREEMPTED}
    assert first.record(names.COMPLETE) is None and first.record(names.TERMINAL) is None
    kept = first.committed()
    assert kept and not any(first.damage(step) for step in kept)

    with Training(out, command=["resume", str(out)]) as second:
        second.until_finished(kept[-1] + 3, generation=2)
        os.kill(second.process("workers-1", "rank"), signal.SIGTERM)
        assert second.wait() == 0, second.output
    (restored, *_) = {event.whole("step") for event in second.events("restore") if event.process.cycle == 0}
    assert restored == kept[-1]
    attempts = {(event.process.generation, event.process.cycle) for event in second.events("attempt_start")}
    assert attempts == {(1, 0), (2, 0), (2, 1)}
    assert len(second.events("pod_created", source="runner")) == 6  # the launcher replaced the rank; no pod was
    assert_same_weights(second)
