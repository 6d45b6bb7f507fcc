"""Faults of the catalogue that only a whole run can show: its launcher, its supervisors, and the local runner act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import load_file
from holdfast.faults.schedule import expected
from tests.e2e.harness import RunFiles, Training

IN_PROCESS = [
    # The peer's first process group never comes about, which must not spoil its second one.
    {"kind": "exception", "rank": 1, "step": 1, "phase": "start_up"},
    {"kind": "hang_gil", "rank": 0, "step": 12, "phase": "collective"},
]
FROM_OUTSIDE = [
    {"kind": "rank_oom", "rank": 0, "step": 8, "phase": "optimizer"},
    {"kind": "sigterm_short_grace", "rank": 1, "step": 13, "for_s": 0.2},
]


def _require_expected(training: Training, faults: Sequence[dict[str, Any]]) -> None:
    """Each fault was noticed, and within its limit."""
    config = load_file(training.run_dir / "run.yaml")
    promised = expected(faults, config)
    assert promised.end == "bit_equal"
    recoveries = {recovery.fault.id: recovery for recovery in training.ledger().recoveries}
    assert set(recoveries) == set(promised.detected_by)
    for one in promised.detected:
        noticed_s, limit_s = recoveries[one.id].detected_s, one.limit_s
        assert noticed_s is not None and limit_s is not None
        # What looks at the limit takes its own time to act, more on a busy machine.
        assert noticed_s < 2 * limit_s + 20, f"{one.id}: noticed after {noticed_s:.1f} s, {one.limit}={limit_s:g}"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_failed_start_and_a_held_interpreter_are_cured_and_leave_the_weights_of_a_clean_run(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """Layer 1 is on: it makes the failed start good, and its hard limit, or the peer's timeout, ends the hang."""
    with Training(tmp_path / "out", "recovery.in_process=true", faults=IN_PROCESS) as training:
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    _require_expected(training, IN_PROCESS)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_memory_that_runs_out_and_an_eviction_without_time_cost_no_commit_and_no_weight(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    with Training(tmp_path / "out", "training.min_step_s=0.3", faults=FROM_OUTSIDE) as training:
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    _require_expected(training, FROM_OUTSIDE)
    assert [event.text("kind") for event in training.events("fault", source="runner")] == ["sigterm_short_grace"]
