"""Nodes as slots. Each replicated job has a pool with one node per replica, and a node takes one pod at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.problems import ConfigError, Problem
from holdfast.local.objects import JobSet


@dataclass
class Node:
    """One slot. gpus: indexes of this machine's GPUs that its pod may use. shares_gpus: other nodes may use one too."""

    name: str
    pool: str
    gpus: tuple[str, ...]
    shares_gpus: bool = False
    pod: str | None = None
    cordoned: bool = False


class Cluster:
    """All nodes. A lost node is gone; after a delay another one with another name takes its GPUs and its place."""

    def __init__(self, jobset: JobSet, replace_after_s: float | None) -> None:
        """replace_after_s: None for no replacement. Raises ConfigError if this machine has too few GPUs."""
        self._replace_after_s = replace_after_s
        self._nodes: dict[str, Node] = {}
        self._made: dict[str, int] = {}
        self._due: list[tuple[float, str, tuple[str, ...]]] = []
        """(monotonic time, pool, GPUs) of replacements on their way"""
        needed = sum(job.replicas * job.job.pod.gpus for job in jobset.replicated_jobs)
        given = _machine_gpus(needed) if needed else ()
        self._shared = frozenset(gpu for gpu in given if given.count(gpu) > 1)
        """GPUs that CUDA_VISIBLE_DEVICES names more than once: nodes share them."""
        gpus = iter(given)
        for job in jobset.replicated_jobs:
            for _ in range(job.replicas):
                self.add(job.name, _no_gpu_twice(tuple(next(gpus) for _ in range(job.job.pod.gpus))))

    def get(self, name: str) -> Node | None:
        """The node, or None if there is none, or none any more."""
        return self._nodes.get(name)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that is there."""
        return tuple(self._nodes.values())

    def add(self, pool: str, gpus: tuple[str, ...] = ()) -> Node:
        """A new node in the pool of that replicated job."""
        number = self._made.get(pool, 0)
        self._made[pool] = number + 1
        node = Node(f"{pool}-node-{number}", pool, gpus, not self._shared.isdisjoint(gpus))
        self._nodes[node.name] = node
        return node

    def lose(self, name: str, now: float) -> None:
        """The node is gone, and its replacement is ordered."""
        node = self._nodes.pop(name)
        if self._replace_after_s is not None:
            self._due.append((now + self._replace_after_s, node.pool, node.gpus))

    def replacements(self, now: float) -> list[Node]:
        """Nodes that have arrived since the last call."""
        arrived = [entry for entry in self._due if entry[0] <= now]
        self._due = [entry for entry in self._due if entry[0] > now]
        return [self.add(pool, gpus) for _, pool, gpus in arrived]

    def assign(self, pool: str, pod: str) -> Node | None:
        """A free node for the pod, or None."""
        for node in self._nodes.values():
            if node.pool == pool and node.pod is None and not node.cordoned:
                node.pod = pod
                return node
        return None

    def free(self, pod: str) -> None:
        """The pod has gone from its node."""
        for node in self._nodes.values():
            if node.pod == pod:
                node.pod = None


def _machine_gpus(needed: int) -> tuple[str, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    else:
        gpus = [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    if len(gpus) < needed:
        fix = "use a profile with fewer ranks, nodes and spares, or a CPU profile"
        raise ConfigError([Problem("nvidia.com/gpu", needed, f"this machine has {len(gpus)} GPUs for its pods", fix)])
    return tuple(gpus[:needed])


def _no_gpu_twice(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """What one node gets. Raises ConfigError: CUDA shows a process no GPU twice."""
    if len(set(gpus)) < len(gpus):
        fix = "name each once, or in an order that gives each node different ones; they are dealt out node by node"
        raise ConfigError([Problem("CUDA_VISIBLE_DEVICES", ",".join(gpus), "one node would have a GPU twice", fix)])
    return gpus
