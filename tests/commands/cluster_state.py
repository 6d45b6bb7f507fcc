"""The cluster as kubectl shows it while a job runs: the objects that this repository synthesizes, with the status that
Kubernetes and the JobSet controller would write. Field names are checked against their APIs by the tests.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from holdfast.config import names

Object = dict[str, Any]
SINCE = "2026-11-30T10:00:00Z"
LABEL = "jobset.sigs.k8s.io"


class ClusterState:
    """One JobSet and all that follows from it; every pod is ready, every node is well. Change it, then dump."""

    def __init__(self, objects: list[Object], restarts: int = 0) -> None:
        self.jobset = copy.deepcopy(next(item for item in objects if item["kind"] == "JobSet"))
        self.name: str = self.jobset["metadata"]["name"]
        self.namespace: str = self.jobset["metadata"]["namespace"]
        self.jobs: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.nodes: dict[str, Object] = {}
        for replicated in self.jobset["spec"]["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                self._add(replicated, index, restarts)
        self.jobset["status"] = {
            "restarts": restarts,
            "restartsCountTowardsMax": restarts,
            "conditions": [],
            "replicatedJobsStatus": [
                {"name": one["name"], "ready": one["replicas"], "active": one["replicas"]}
                | {"failed": 0, "succeeded": 0, "suspended": 0}
                for one in self.jobset["spec"]["replicatedJobs"]
            ],
        }

    def _add(self, replicated: Object, index: int, restarts: int) -> None:
        role = replicated["name"]
        seat, node = f"{role}-{index}", f"node-{role}-{index}"
        labels = {
            f"{LABEL}/jobset-name": self.name,
            f"{LABEL}/replicatedjob-name": role,
            f"{LABEL}/job-index": str(index),
            f"{LABEL}/restart-attempt": str(restarts),
        }
        spec = copy.deepcopy(replicated["template"]["spec"])
        self.jobs[seat] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{self.name}-{seat}", "namespace": self.namespace, "labels": labels},
            "spec": spec,
            "status": {"active": 1, "ready": 1, "failed": 0, "startTime": SINCE},
        }
        container = spec["template"]["spec"]["containers"][0]
        self.pods[seat] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{self.name}-{seat}-0-abcde",
                "namespace": self.namespace,
                "labels": {**spec["template"]["metadata"]["labels"], **labels},
            },
            "spec": {**copy.deepcopy(spec["template"]["spec"]), "nodeName": node},
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.7",
                "startTime": SINCE,
                "conditions": [_condition("PodScheduled", "True"), _condition("Ready", "True")],
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": container["image"],
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": SINCE}},
                    }
                ],
            },
        }
        self.nodes[node] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node, "labels": {names.POOL_LABEL: names.GPU_POOL}},
            "spec": {"taints": [{"key": names.GPU_TAINT, "value": "true", "effect": "NoSchedule"}]},
            "status": {"conditions": [_condition("MemoryPressure", "False"), _condition("Ready", "True")]},
        }

    def node_of(self, seat: str) -> Object:
        """The node that a seat's pod is on."""
        return self.nodes[self.pods[seat]["spec"]["nodeName"]]

    def end(self, seat: str, code: int, message: str = "", reason: str = "Error") -> None:
        """The container of a seat's pod has ended."""
        pod = self.pods[seat]
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        pod["status"]["conditions"] = [_condition("PodScheduled", "True"), _condition("Ready", "False")]
        terminated = {"exitCode": code, "reason": reason, "startedAt": SINCE, "finishedAt": SINCE, "message": message}
        pod["status"]["containerStatuses"][0] |= {"ready": False, "state": {"terminated": terminated}}

    def leave_pending(self, seat: str, message: str) -> None:
        """No node has room for a seat's pod."""
        pod = self.pods[seat]
        self.nodes.pop(pod["spec"].pop("nodeName"))
        scheduled = _condition("PodScheduled", "False") | {"reason": "Unschedulable", "message": message}
        pod["status"] = {"phase": "Pending", "conditions": [scheduled]}

    def fail(self, reason: str, message: str) -> None:
        """The JobSet has failed."""
        condition = _condition("Failed", "True") | {"reason": reason, "message": message}
        self.jobset["status"] |= {"terminalState": "Failed", "conditions": [condition]}

    def unready(
        self, node: Object, kind: str = "Ready", reason: str = "KubeletNotReady", status: str = "False"
    ) -> None:
        """A condition of a node goes bad."""
        conditions = [one for one in node["status"]["conditions"] if one["type"] != kind]
        node["status"]["conditions"] = [
            *conditions,
            _condition(kind, status) | {"reason": reason, "message": "it said"},
        ]

    @property
    def items(self) -> list[Object]:
        """Everything, in the order in which kubectl prints it."""
        return [self.jobset, *self.jobs.values(), *self.pods.values(), *self.nodes.values()]

    def dump(self) -> str:
        """What `kubectl get jobset,job,pod,node -o json` prints."""
        return json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": self.items, "metadata": {"resourceVersion": ""}}
        )


def _condition(kind: str, status: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": SINCE, "reason": "", "message": ""}
