"""Hot spares take the places of nodes that are lost, one or several at once, or that are emptied on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.local import RunnerOptions
from tests.e2e.cluster import LiveCluster
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


def seats(run: RunFiles) -> dict[int, tuple[str, tuple[int, int]]]:
    """Rank -> (pod, (generation, launcher's cycle)) of the process that made its first step last."""
    made = [event.process for event in sorted(run.events("first_step"), key=lambda event: event.start)]
    return {process.rank or 0: (process.pod, (process.generation, process.cycle)) for process in made}


def until_others_train(cluster: LiveCluster, gone: set[str]) -> set[str]:
    """Wait until both ranks are in pods of one round, none of them in `gone`; those pods."""

    def others() -> set[str] | None:
        now = seats(cluster)
        pods, rounds = {pod for pod, _ in now.values()}, {cycle for _, cycle in now.values()}
        return pods if len(now) == 2 and len(rounds) == 1 and not pods & gone else None

    return cluster.until(f"others than {', '.join(sorted(gone))} train", others)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_nodes_lost_at_once_then_one_drained_and_one_evicted_are_replaced_by_spares(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """Two nodes, two spares. Whoever is asked to go saves first, so that only the lost nodes cost steps."""
    sets = ("recovery.spares=2", "training.min_step_s=0.7", "checkpoint.interval_steps=3")
    patience = ("recovery.term_timeout_s=40", "cluster.grace_period_s=60")
    with LiveCluster(tmp_path / "out", *sets, *patience, options=RunnerOptions()) as cluster:
        cluster.until("a commit", cluster.committed)
        first = until_others_train(cluster, set())
        lost = [cluster.node_of(pod) for pod in first]
        for future in [cluster.runner.kill_node(node) for node in lost]:  # both before the loop's next turn
            future.result(10)
        second = until_others_train(cluster, first)
        drained = next(iter(second))
        cluster.runner.drain(cluster.node_of(drained), limit_s=100).result(110)
        third = until_others_train(cluster, {drained})
        evicted = next(iter(third - {drained}))
        cluster.runner.evict(evicted).result(10)
        until_others_train(cluster, {evicted})
        assert cluster.wait() == 0, cluster.logs()
    assert_same_weights(cluster)
    exits = cluster.pod_exits()
    assert {exits[pod] for pod in first} == {137}
    assert exits[drained] == exits[evicted] == names.EXIT_PREEMPTED
    # One that was still starting when the run was complete may have been told to go before it knew.
    others = {pod: code for pod, code in exits.items() if pod not in {*first, drained, evicted}}
    trained = {event.process.pod for event in cluster.events("attempt_start")}
    assert {code for pod, code in others.items() if pod in trained} == {0}, others
    assert names.EXIT_RETRY not in others.values(), others
    # Nobody of the first round was left to open the next: the spares met in a new generation. Later ones had no need.
    assert {event.process.generation for event in cluster.events("attempt_start")} == {1, 2}
    broken, *asked = cluster.ledger().recoveries
    assert broken.layer == "node" and len(asked) == 2 and [recovery.lost_steps for recovery in asked] == [0, 0]
