"""What can be broken from outside, and what then happens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.local.report import JobSetRestarted, NodeAdded, NodeLost, PodEnded, PodEvicted, PodStarted
from tests.local.toys import FAST, FOREVER, budget, job, jobset, running, until

# Its child has a session of its own and ignores SIGTERM.
FAMILY = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & echo $! >/fsx/child; " + FOREVER
STORAGE = {
    "container": {"volumeMounts": [{"name": "storage", "mountPath": "/fsx"}]},
    "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": "fsx"}}],
}
CONTROL = job("control", FOREVER)
WORKERS = job("workers", FOREVER, replicas=2, backoff_limit=9)


def test_a_killed_node_takes_its_whole_pod_along_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    workers = job("workers", FAMILY, backoff_limit=9, **STORAGE)  # type: ignore[arg-type]
    with running(tmp_path / "out", jobset(CONTROL, workers)) as run:
        first = run.pod("workers")
        child = child_of(tmp_path / "out")
        (tmp_path / "out/nodes" / str(first.node)).mkdir(parents=True)
        run.runner.kill_node(first.node or "").result(5)
        ended = until(lambda: [pod for pod in run.of(PodEnded) if pod.pod == first.name])[0]
        assert (ended.code, ended.expected, ended.reason) == (137, True, "node workers-node-0 was lost")
        assert not Path(f"/proc/{child}").exists() and not (tmp_path / "out/nodes" / str(first.node)).exists()
        second = run.pod("workers", not_named=first.name)
        assert second.node == "workers-node-1"
        (lost,), (added,) = run.of(NodeLost), run.of(NodeAdded)
        assert added.at - lost.at >= (FAST.replace_lost_nodes_after_s or 0)
        assert ended.at - lost.at < 3


def test_a_killed_process_is_the_pods_own_affair(tmp_path: Path) -> None:
    workers = job("workers", FAMILY, backoff_limit=9, **STORAGE)  # type: ignore[arg-type]
    with running(tmp_path / "out", jobset(CONTROL, workers)) as run:
        pod = run.pod("workers")
        child = child_of(tmp_path / "out")
        run.runner.kill_rank(child).result(5)
        until(lambda: state(child) in "Z", 3)
        assert [one.name for one in run.runner.pods() if one.replicated_job == "workers"] == [pod.name]


def child_of(out: Path) -> int:
    """The process that FAMILY started."""
    until(lambda: (out / "fsx/child").exists() and (out / "fsx/child").read_text())
    return int((out / "fsx/child").read_text())


def state(pid: int) -> str:
    """One letter; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_killing_a_process_of_somebody_else_is_refused(tmp_path: Path) -> None:
    match = "process 1 belongs to no pod"
    with running(tmp_path / "out", jobset(CONTROL)) as run, pytest.raises(LookupError, match=match):
        run.runner.kill_rank(1).result(5)


def test_an_evicted_pod_gets_sigterm_and_comes_back_without_delay(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL, WORKERS)) as run:
        first = run.pod("workers", 1)
        run.runner.evict(first.name, 5).result(5)
        second = run.pod("workers", 1, not_named=first.name)
        (ended,) = run.of(PodEnded)
        started = next(pod for pod in run.of(PodStarted) if pod.pod == second.name)
        assert (ended.code, ended.reason) == (75, "evicted")
        assert started.at - ended.at < 0.5
        assert second.node == first.node


def test_an_eviction_with_a_short_grace_period_kills(tmp_path: Path) -> None:
    workers = job("workers", "trap '' TERM; while :; do sleep 0.05; done", backoff_limit=9, grace_s=60)
    with running(tmp_path / "out", jobset(CONTROL, workers)) as run:
        run.runner.evict(run.pod("workers").name, 0.2).result(5)
        assert until(lambda: run.of(PodEnded), 5)[0].code == 137


def test_killing_control_restarts_the_jobset(tmp_path: Path) -> None:
    workers = job("workers", FOREVER, replicas=2, backoff_limit=9, depends_on="control")
    with running(tmp_path / "out", jobset(CONTROL, workers, max_restarts=1)) as run:
        old = [run.pod("workers", index).name for index in (0, 1)]
        run.runner.kill_control().result(5)
        new = [run.pod("workers", index, not_named=old[index]) for index in (0, 1)]
        assert [pod.attempt for pod in new] == [1, 1]
        assert [restart.attempt for restart in run.of(JobSetRestarted)] == [1]
        control = next(pod for pod in run.of(PodEnded) if "control" in pod.pod)
        assert (control.code, control.expected) == (137, True)


def test_a_drain_waits_for_the_disruption_budget(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL, WORKERS), budget("workers", 2)) as run:
        pod = until(
            lambda: next((pod for pod in run.runner.pods() if pod.replicated_job == "workers" and pod.ready), None)
        )
        until(lambda: sum(pod.ready for pod in run.runner.pods()) == 3)
        with pytest.raises(TimeoutError, match="budget workers wants 2 ready pods and there are 2"):
            run.runner.drain(pod.node or "", limit_s=0.3).result(5)
        assert not run.of(PodEvicted)


def test_drains_go_node_by_node_as_the_budget_allows(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL, WORKERS), budget("workers", 1)) as run:
        first = [run.pod("workers", index) for index in (0, 1)]
        until(lambda: sum(pod.ready for pod in run.runner.pods()) == 3)
        for name in ("workers-node-2", "workers-node-3"):
            assert run.runner.add_node("workers").result(5) == name
        drains = [run.runner.drain(pod.node or "") for pod in first]
        for drain in drains:
            drain.result(10)
        second = [run.pod("workers", index, not_named=first[index].name) for index in (0, 1)]
        assert {pod.node for pod in second} == {"workers-node-2", "workers-node-3"}
        evictions, ends = run.of(PodEvicted), run.of(PodEnded)
        assert len(evictions) == 2 and ends[0].at <= evictions[1].at


def test_verbs_on_what_is_not_there_say_what_is(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL)) as run:
        run.pod("control")
        for verb, name in ((run.runner.kill_node, "node-9"), (run.runner.drain, "node-9"), (run.runner.evict, "pod-9")):
            with pytest.raises(LookupError, match=f"there is no .* {name}; there are (control-node-0|toy-control)"):
                verb(name).result(5)
        assert run.runner.nodes() == ("control-node-0",)


def test_verbs_after_the_end_are_cancelled(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(job("control", "exit 0"))) as run:
        run.result()
        assert run.runner.kill_control().cancelled() and run.runner.drain("x").cancelled()


def test_a_verb_is_done_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL)) as run:
        name = run.pod("control").name
        began = time.monotonic()
        run.runner.kill_pod(name).result(5)
        until(lambda: run.of(PodEnded), 5)
        assert time.monotonic() - began < 3
