"""Several faults in one run: each strikes once, each is cured by its layer, and the result is that of a quiet run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import RunFiles, Training

FAULTS = [
    {"kind": "exception", "rank": 1, "step": 12},
    {"kind": "rank_sigkill", "rank": 0, "step": 13},
    {"kind": "hang", "rank": 1, "step": 17},
]
LAYERS = {
    "exception-rank1-step12": "in_process",
    "rank_sigkill-rank0-step13": "in_job",
    "hang-rank1-step17": "in_process",
}


@pytest.mark.timeout(240)
def test_nested_faults_strike_once_each_and_leave_the_weights_of_a_clean_run(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-17, and faults inside recoveries: rank 0 dies while the work lost by rank 1's exception is done again."""
    with Training(tmp_path / "out", "recovery.in_process=true", "training.min_step_s=0.1", faults=FAULTS) as training:
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    assert sorted(event.text("id") for event in training.events("fault")) == sorted(LAYERS)
    assert sorted(path.stem for path in (training.run_dir / "faults").iterdir()) == sorted(LAYERS)
    steps = training.events("step")
    for fault in training.events("fault"):
        rank, step = fault.whole("rank"), fault.whole("step")
        assert fault.process.rank == rank
        after = [event for event in steps if event.finished_step == step and event.start > fault.start]
        assert {event.process.rank for event in after} == {0, 1}, f"{fault.text('id')}: its step was not done again"
    recoveries = {recovery.fault.id: recovery for recovery in training.ledger().recoveries}
    assert {identity: recovery.layer for identity, recovery in recoveries.items()} == LAYERS
    # Nobody starts again at 0: a save waits for the one before, so step 5 is committed when step 11 begins.
    assert recoveries["rank_sigkill-rank0-step13"].lost_steps in (12 - 5, 12 - 10)
    assert min(event.whole("step") or 0 for event in training.events("restore")) >= 5
