"""A hot spare takes the place of a lost node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import RunFiles, Training


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_spare_takes_over_a_lost_node_and_the_idle_pod_ends_in_order_too(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-12: two nodes and a spare; one that trains is lost, its replacement becomes the next spare."""
    sets = ("recovery.spares=1", "training.min_step_s=0.2")
    with Training(tmp_path / "out", *sets, faults=[{"kind": "node_loss", "rank": 0, "step": 8}]) as training:
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    created = {event.text("pod"): event.start for event in training.events("pod_created", source="runner")}
    exits = training.pod_exits()
    (lost,) = [pod for pod, code in exits.items() if code]
    assert len(created) == 5 and exits.keys() == created.keys()  # control, 2 nodes, spare, replacement
    (fault,) = training.events("fault", source="runner")
    (recovery,) = training.ledger().recoveries
    assert recovery.layer == "node"
    before, after = (
        {event.process.pod for event in training.events("attempt_start") if (event.start > fault.start) is late}
        for late in (False, True)
    )
    assert lost in before and lost not in after
    (spare,) = after - before
    assert created[spare] < fault.start, "the spare took over, not a new pod"
