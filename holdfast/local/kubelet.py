"""Starts pods on this machine: resolves what their containers refer to, makes their folders, starts their processes."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from holdfast.local.addresses import Addresses
from holdfast.local.nodes import Node
from holdfast.local.objects import JobSet, Manifest
from holdfast.local.pod import Pod
from holdfast.local.processes import TOKEN_VARIABLE, PodProcess
from holdfast.local.rewrite import PodFacts, plan_pod
from holdfast.local.volumes import Layout, create, last_words, place

ROOT = Path(__file__).resolve().parents[2]
"""What an image has in its working directory: the packages of this repository."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
_INHERITED_PREFIXES = ("CUDA", "NCCL_", "NVIDIA_")


class Kubelet:
    """One for all nodes of a run."""

    def __init__(
        self, manifest: Manifest, layout: Layout, addresses: Addresses, ports: Mapping[tuple[str, int], int], token: str
    ):
        self._manifest = manifest
        self._layout = layout
        self._new_addresses = addresses
        self._ports = ports
        self._token = token
        self._started = 0
        # A name must resolve before its pod exists, since it is written into the environment of others.
        self._book = {host: addresses.new() for host in manifest.jobset.hosts}

    @property
    def jobset(self) -> JobSet:
        """What it runs."""
        return self._manifest.jobset

    def start(self, pod: Pod, node: Node) -> None:
        """Start the pod on the node; sets its node, address, plan and process."""
        number = self._started = self._started + 1
        pod.node, pod.address = node.name, self._book[pod.host]
        placements = place(pod.template, self._layout, pod.name, number, node.name, self._manifest.config_maps)
        facts = PodFacts(
            jobset=self.jobset,
            pod=pod.name,
            fields=self._fields(pod),
            host=pod.host,
            placements=(*placements, last_words(self._layout, pod.name)),
            addresses=self._book,
            ports=self._ports,
            additions=self._additions(pod, node),
        )
        pod.plan = plan_pod(pod.template.container, facts)
        remove = create(placements, self._layout, pod.name, number)
        pod.process = PodProcess(
            pod.name,
            pod.plan.argv,
            pod.plan.environment,
            self._layout.pod(pod.name),
            self._layout.log(pod.name),
            remove,
        )

    def forget(self, pod: Pod) -> None:
        """The pod has gone. Its successor has another address, known to pods that start before it."""
        if pod.address == self._book[pod.host]:
            self._book[pod.host] = self._new_addresses.new()

    def _fields(self, pod: Pod) -> dict[str, str]:
        return {
            "metadata.name": pod.name,
            "metadata.namespace": self.jobset.namespace,
            "metadata.uid": str(uuid.uuid4()),
            "spec.nodeName": pod.node or "",
            "status.podIP": pod.address or "",
            "status.hostIP": pod.address or "",
            **{f"metadata.labels['{key}']": value for key, value in pod.labels.items()},
            **{f"metadata.annotations['{key}']": value for key, value in pod.template.annotations.items()},
        }

    def _additions(self, pod: Pod, node: Node) -> dict[str, tuple[str, str]]:
        image = "the image is this interpreter"
        path = [str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        additions = {
            name: (value, "inherited from the runner")
            for name, value in os.environ.items()
            if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
        }
        additions["PATH"] = (os.pathsep.join(dict.fromkeys(path)), image)
        additions["PYTHONPATH"] = (str(ROOT), image)
        additions["HOSTNAME"] = (pod.host, "a kubelet sets it")
        additions["JOB_COMPLETION_INDEX"] = ("0", "the Job controller sets it")
        additions[TOKEN_VARIABLE] = (f"{self._token}.{pod.name}", "tells the run's processes apart")
        if pod.template.gpus:
            additions["CUDA_VISIBLE_DEVICES"] = (",".join(node.gpus), f"GPUs of node {node.name}")
            if node.shares_gpus:
                additions["NCCL_HOSTID"] = (pod.host, "NCCL refuses two ranks on one GPU of one host")
        return additions
