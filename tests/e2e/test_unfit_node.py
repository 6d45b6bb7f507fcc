"""A node that went bad between two restarts loses its place to a spare, and no new pod trains on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import RunFiles, Training

WHY = "Xid 79: a GPU has fallen off the bus"


def volume_of(pid: int) -> Path:
    """The own volume of the node that a process runs on, as its environment says."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    name = f"{names.ENV_NODE_VOLUME}=".encode()
    return Path(next(v.removeprefix(name) for v in variables if v.startswith(name)).decode())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_found_unfit_before_a_restart_is_excluded_and_its_next_pod_waits_until_the_run_is_complete(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """An agent marks a node while its rank trains; then the rank of the other node dies."""
    sets = ("recovery.spares=1", "training.min_step_s=0.5", "checkpoint.local.interval_steps=3")
    out = tmp_path / "out"
    with Training(out, *sets, "recovery.unfit_wait_s=120") as training:
        training.until_finished(4)
        pods = {event.process.rank: event.process.pod for event in training.events("attempt_start")}
        stems = {rank: pod.rpartition("-")[0].rpartition("workers-")[2] for rank, pod in pods.items()}
        bad = pods[0]
        (volume_of(training.process(f"workers-{stems[0]}", "supervisor")) / names.UNFIT_MARK).write_text(WHY)
        os.kill(training.process(f"workers-{stems[1]}", "rank"), signal.SIGKILL)
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    trained = {event.process.pod for event in training.events("first_step") if event.process.cycle > 0}
    assert bad not in trained and len(trained) == 2
    created = {event.text("pod"): event.text("node") for event in training.events("pod_created", source="runner")}
    exits = training.pod_exits()
    assert exits[bad] == names.EXIT_RETRY
    assert WHY in (out / "pods" / "logs" / f"{bad}.end").read_text()
    (successor,) = [pod for pod, node in created.items() if node == created[bad] and pod != bad]
    assert successor not in trained and exits[successor] == 0
    said = (out / "pods" / "logs" / f"{successor}.log").read_text()
    assert said.count("this node is unfit, waiting") == 1 and WHY in said
    assert {event.process.generation for event in training.events("attempt_start")} == {1}
