"""What can be done to a running cluster from outside its loop: break it, or ask it. Safe from any thread."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from holdfast.local import report
from holdfast.local.folder import RunFolder
from holdfast.local.nodes import Cluster, Node
from holdfast.local.objects import Manifest
from holdfast.local.pod import Pod
from holdfast.local.processes import descends_from

DRAIN_LIMIT_S = 60.0
KILLED_REASON = "killed from outside"


@dataclass
class _Drain:
    node: str
    deadline: float
    done: Future[None]


class Verbs(ABC):
    """Each verb is done by the loop at its next turn, within milliseconds. Its Future then has the result or the error.
    When the run has ended it is cancelled.

    A hook or observer, which runs in the loop, must not wait for a Future.
    """

    manifest: Manifest
    folder: RunFolder
    cluster: Cluster

    def __init__(self) -> None:
        self.live: list[Pod] = []
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._drains: list[_Drain] = []
        self._lock = threading.RLock()  # reentrant: a signal handler asks too
        self._closed = False
        self._pods: tuple[report.PodState, ...] = ()
        self._nodes: tuple[str, ...] = ()
        self.wake_descriptor, self._wake_write = os.pipe()
        for descriptor in (self.wake_descriptor, self._wake_write):
            os.set_blocking(descriptor, False)

    # --- ask ---

    def pods(self) -> tuple[report.PodState, ...]:
        """The pods that are there, as of the loop's last turn."""
        return self._pods

    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that are there, as of the loop's last turn."""
        return self._nodes

    # --- break ---

    def kill_node(self, node: str) -> Future[None]:
        """SIGKILL to every process of the node's pod; node, disk and pod are gone. LookupError if it is not there."""
        return self._ask(lambda: self._kill_node(node))

    def kill_rank(self, pid: int) -> Future[None]:
        """SIGKILL to one process of a pod. LookupError if pid belongs to no pod of this run."""
        return self._ask(lambda: self._kill_process(pid))

    def kill_pod(self, pod: str) -> Future[None]:
        """SIGKILL to every process of the pod; its node stays. LookupError if it is not there."""
        return self._ask(lambda: self._pod(pod).kill(KILLED_REASON))

    def kill_control(self) -> Future[None]:
        """kill_pod for each pod on whose success that of the JobSet depends."""
        return self._ask(self._kill_control)

    def evict(self, pod: str, grace_s: float | None = None) -> Future[None]:
        """Condition DisruptionTarget, SIGTERM, and SIGKILL after the grace period (None: the pod's own)."""
        return self._ask(lambda: self._evict(self._pod(pod), grace_s))

    def drain(self, node: str, limit_s: float = DRAIN_LIMIT_S) -> Future[None]:
        """Cordon the node and evict its pod as soon as the disruption budgets allow it; done when the pod has gone.

        TimeoutError if that takes longer than limit_s.
        """
        done: Future[None] = Future()

        def begin() -> None:
            self._node(node).cordoned = True
            self._drains.append(_Drain(node, time.monotonic() + limit_s, done))

        def refuse(asked: Future[Any]) -> None:
            if asked.cancelled():
                done.cancel()
            elif (error := asked.exception()) is not None:
                done.set_exception(error)

        self._ask(begin).add_done_callback(refuse)
        return done

    def add_node(self, pool: str) -> Future[str]:
        """A new node for the pods of that replicated job; its name."""
        return self._ask(lambda: self._add_node(pool))

    def stop(self, reason: str, grace_s: float | None = None) -> Future[None]:
        """End every pod, after their own grace periods or the given one, and then the run."""
        return self._ask(lambda: self._stop(reason, grace_s))

    # --- the loop's side ---

    def perform(self, now: float) -> None:
        """Do what was asked for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_descriptor, 4096)
        while self._asked:
            verb, future = self._asked.popleft()
            try:
                future.set_result(verb())
            except LookupError as error:
                future.set_exception(error)
        self._drains = [drain for drain in self._drains if not self._drained(drain, now)]

    def publish(self) -> None:
        """Let onlookers see the present state."""
        self._pods = tuple(pod.state() for pod in self.live)
        self._nodes = tuple(node.name for node in self.cluster.nodes)

    def close_verbs(self) -> None:
        """No more verbs: those still waiting are cancelled, and so are those to come."""
        with self._lock:
            self._closed = True
            for _, future in self._asked:
                future.cancel()
            for drain in self._drains:
                drain.done.cancel()
            os.close(self.wake_descriptor)
            os.close(self._wake_write)

    @abstractmethod
    def record(self, name: str, **fields: Any) -> None:
        """Write a point into the event log."""

    @abstractmethod
    def _tell(self, happening: report.Happening) -> None: ...

    @abstractmethod
    def _stop(self, reason: str, grace_s: float | None) -> None: ...

    def _ask(self, verb: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._asked.append((verb, future))
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well
                os.write(self._wake_write, b"!")
        return future

    def _pod(self, name: str) -> Pod:
        for pod in self.live:
            if pod.name == name:
                return pod
        raise LookupError(f"there is no pod {name}; there are {', '.join(pod.name for pod in self.live) or 'none'}")

    def _node(self, name: str) -> Node:
        node = self.cluster.get(name)
        if node is None:
            raise LookupError(f"there is no node {name}; there are {', '.join(n.name for n in self.cluster.nodes)}")
        return node

    def _kill_node(self, name: str) -> None:
        node = self._node(name)
        if node.pod is not None:
            pod = self._pod(node.pod)
            pod.disrupted = pod.lost = True
            pod.kill(f"node {name} was lost")
        self.cluster.lose(name, time.monotonic())
        if node.pod is None:  # else when the pod's last process has gone
            shutil.rmtree(self.folder.layout.node(name), ignore_errors=True)
        self.record("node_killed", node=name)
        self._tell(report.NodeLost(name, node.pod))

    def _kill_process(self, pid: int) -> None:
        roots = [pod.process.shim_pid for pod in self.live if pod.process is not None]
        if not descends_from(pid, roots):
            raise LookupError(f"process {pid} belongs to no pod of this run")
        os.kill(pid, signal.SIGKILL)

    def _kill_control(self) -> None:
        targets = self.manifest.jobset.success_targets
        pods = [pod for pod in self.live if not targets or pod.replicated_job in targets]
        if not pods:
            raise LookupError(f"no pod of {', '.join(targets)} is there")
        for pod in pods:
            pod.kill(KILLED_REASON)

    def _evict(self, pod: Pod, grace_s: float | None) -> None:
        pod.disrupted = True
        pod.stop("evicted", grace_s)
        self._tell(report.PodEvicted(pod.name, pod.template.grace_period_s if grace_s is None else grace_s))

    def _add_node(self, pool: str) -> str:
        if pool not in {job.name for job in self.manifest.jobset.replicated_jobs}:
            raise LookupError(f"there is no replicated job {pool}")
        node = self.cluster.add(pool)
        self._tell(report.NodeAdded(node.name, pool))
        return node.name

    def _drained(self, drain: _Drain, now: float) -> bool:
        node = self.cluster.get(drain.node)
        pod = None if node is None or node.pod is None else self._pod(node.pod)
        if pod is None:
            drain.done.set_result(None)
            return True
        if now >= drain.deadline:
            drain.done.set_exception(
                TimeoutError(f"pod {pod.name} is still on node {drain.node}: {self._forbidding(pod)}")
            )
            return True
        if not pod.stopping and not self._forbidding(pod):
            self._evict(pod, None)
        return False

    def _forbidding(self, pod: Pod) -> str:
        """The disruption budget that forbids to evict the pod now, in words; empty if none does."""
        for budget in self.manifest.budgets:
            covered = [other for other in self.live if budget.labels.items() <= other.labels.items()]
            if pod not in covered or (budget.evict_unready and not pod.ready):
                continue
            healthy = sum(other.ready and not other.stopping for other in covered)
            if healthy - pod.ready < budget.min_available:
                return f"budget {budget.name} wants {budget.min_available} ready pods and there are {healthy}"
        return ""
