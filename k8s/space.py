"""What jobs need around them: the namespace with its Pod Security level, their service account and priority."""

from __future__ import annotations

from holdfast.config import RunConfig, names
from k8s.local_disk import host_folder
from k8s.placement import Manifest

PRIORITY_CLASS = "holdfast"
ENFORCE = "pod-security.kubernetes.io/enforce"
LEVEL_REASON = "holdfast/pod-security-reason"
"""Annotation: why the namespace has its level."""
_PART_OF = {"app.kubernetes.io/part-of": "holdfast"}


def namespace(config: RunConfig) -> Manifest:
    """The jobs' namespace. `privileged` only where a worker needs what `baseline` forbids."""
    needs = privileged_needs(config)
    level = "privileged" if needs else "baseline"
    reason = f"outside baseline: {', '.join(needs)}" if needs else "no pod needs more"
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": config.cluster.namespace,
            # Audit, not warn: with a privileged level every pod would print the same warning.
            "labels": {**_PART_OF, ENFORCE: level, "pod-security.kubernetes.io/audit": "baseline"},
            "annotations": {LEVEL_REASON: reason},
        },
    }


def privileged_needs(config: RunConfig) -> list[str]:
    """What a worker on this node type has that the Pod Security level `baseline` forbids."""
    disk = "the local NVMe array" if config.instance.local_nvme else "the local checkpoint tier"
    needs = [f"hostPath for {disk}"] if host_folder(config) else []
    return [*needs, "IPC_LOCK for EFA"] if config.instance.efa else needs


def service_account(config: RunConfig) -> Manifest:
    """Identity of the training pods on AWS: a Pod Identity association names it. It has no rights in Kubernetes."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.SERVICE_ACCOUNT, "namespace": config.cluster.namespace, "labels": _PART_OF},
        "automountServiceAccountToken": False,
    }


def priority_class() -> Manifest:
    """Above everything without a priority: half a training job cannot run while the other half waits."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS, "labels": _PART_OF},
        "value": 100_000,
        "preemptionPolicy": "PreemptLowerPriority",
        "globalDefault": False,
        "description": "Holdfast training pods: one that cannot be placed stops all others of its job.",
    }
