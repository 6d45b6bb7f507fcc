"""Where pods may land: labels and taints of the two node groups that infra builds, and the tolerations for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.config import names

Manifest = dict[str, Any]

GPU_NODES = {names.POOL_LABEL: names.GPU_POOL}
"""Node selector of the GPU group."""
SYSTEM_NODES = {names.POOL_LABEL: names.SYSTEM_POOL}
"""Node selector of the group without GPUs and without taints."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
"""Node label that the cloud provider sets."""


class Taint(NamedTuple):
    """A taint as Kubernetes spells it."""

    key: str
    value: str
    effect: str


GPU_TAINT = Taint(names.GPU_TAINT, names.GPU_TAINT_VALUE, "NoSchedule")
START_UP_TAINT = Taint(names.STORAGE_TAINT, "", "NoExecute")
"""There until the node can mount FSx. Training pods must not tolerate it, or they start without storage."""
GPU_POOL_TAINTS = (GPU_TAINT, START_UP_TAINT)
"""All taints of the GPU group. What makes a node ready tolerates both."""


def toleration(taint: Taint) -> Manifest:
    """Tolerates the taint with any value."""
    return {"key": taint.key, "operator": "Exists", "effect": taint.effect}


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Taint) -> bool:
    """Whether one of a pod's tolerations answers the taint for good, by Kubernetes' own rules."""
    return any(_answers(one, taint) for one in tolerations if "tolerationSeconds" not in one)


def _answers(one: Mapping[str, Any], taint: Taint) -> bool:
    if one.get("effect") not in (None, "", taint.effect):
        return False
    if one.get("operator", "Equal") == "Exists":
        return one.get("key") in (None, "", taint.key)
    return bool(one.get("key") == taint.key and one.get("value", "") == taint.value)
