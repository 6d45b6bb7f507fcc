"""Rules about managed node groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.config import names
from infra.rules.assembly import Assembly
from infra.rules.nodes import gpu_groups, node_groups
from infra.rules.rule import Finding, Rule

GPU_AMI = "AL2023_x86_64_NVIDIA"


def gpus_are_in_one_subnet(assembly: Assembly) -> Iterator[Finding]:
    """EFA traffic does not leave a subnet's zone."""
    for group in gpu_groups(assembly):
        subnets = group.group.properties.get("Subnets")
        if not isinstance(subnets, list) or len(subnets) != 1:
            count = len(subnets) if isinstance(subnets, list) else "an unknown number of"
            yield Finding(
                resource=group.group,
                wrong=f"a GPU node group has {count} subnets",
                why="nodes in different zones cannot reach each other over EFA, and reads from FSx cross zones",
                write="the one subnet of aws.gpu_zone",
            )


def gpus_have_the_nvidia_image(assembly: Assembly) -> Iterator[Finding]:
    """The exact spelling, which only EKS checks."""
    for group in gpu_groups(assembly):
        ami = group.group.properties.get("AmiType")
        if ami != GPU_AMI and "ImageId" not in group.data:
            yield Finding(
                resource=group.group,
                wrong=f"AmiType is {ami}",
                why="it is the only one with the NVIDIA driver and EFA; EKS compares upper and lower case",
                write=f"AmiType: {GPU_AMI}",
            )


def sizes_are_in_order(assembly: Assembly) -> Iterator[Finding]:
    """min <= desired <= max, and max at least 1."""
    for group in node_groups(assembly):
        scaling = group.group.properties.get("ScalingConfig") or {}
        low, wanted, high = (scaling.get(name) for name in ("MinSize", "DesiredSize", "MaxSize"))
        if not (isinstance(low, int) and isinstance(wanted, int) and isinstance(high, int)):
            wrong = f"MinSize, DesiredSize, MaxSize are {low}, {wanted}, {high}"
        elif not 0 <= low <= wanted <= high:
            wrong = f"{low} (MinSize) <= {wanted} (DesiredSize) <= {high} (MaxSize) does not hold"
        elif high < 1:
            wrong = "MaxSize is 0"
        else:
            continue
        yield Finding(
            resource=group.group,
            wrong=wrong,
            why="EKS refuses the node group; a maximum below 1 too",
            write="MinSize <= DesiredSize <= MaxSize, MaxSize at least 1",
        )


_EXCLUSIVE = (
    ("MaxParallelNodesRepairedCount", "MaxParallelNodesRepairedPercentage"),
    ("MaxUnhealthyNodeThresholdCount", "MaxUnhealthyNodeThresholdPercentage"),
)
_OVERRIDE = ("MinRepairWaitTimeMins", "NodeMonitoringCondition", "NodeUnhealthyReason", "RepairAction")


def repair_is_well_formed(assembly: Assembly) -> Iterator[Finding]:
    """A count or a percentage, not both; overrides complete."""
    for group in node_groups(assembly):
        repair: dict[str, Any] = group.group.properties.get("NodeRepairConfig") or {}
        for count, percentage in _EXCLUSIVE:
            if count in repair and percentage in repair:
                yield Finding(
                    resource=group.group,
                    wrong=f"{count} and {percentage} are both given",
                    why="EKS refuses a node group with both; no other check looks",
                    write="one of the two",
                )
        for override in repair.get("NodeRepairConfigOverrides") or []:
            missing = [name for name in _OVERRIDE if name not in override]
            if missing:
                yield Finding(
                    resource=group.group,
                    wrong=f"a repair override lacks {', '.join(missing)}",
                    why="EKS takes an override only with all four fields",
                    write=", ".join(_OVERRIDE),
                )


def gpus_are_updated_in_place_of_one(assembly: Assembly) -> Iterator[Finding]:
    """An update must not need spare GPU nodes."""
    for group in gpu_groups(assembly):
        strategy = (group.group.properties.get("UpdateConfig") or {}).get("UpdateStrategy")
        if strategy != "MINIMAL":
            yield Finding(
                resource=group.group,
                wrong=f"UpdateStrategy is {strategy or 'not set'}",
                why="by default EKS first starts more GPU nodes, and an update hangs where there is no capacity",
                write="UpdateConfig: {MaxUnavailable: 1, UpdateStrategy: MINIMAL}",
            )


def _taints(group: dict[str, Any]) -> dict[str, str]:
    return {str(taint.get("Key")): str(taint.get("Effect")) for taint in group.get("Taints") or []}


def gpus_are_kept_for_training(assembly: Assembly) -> Iterator[Finding]:
    """The GPU taint and the pool label on GPU nodes; the start-up taint until FSx can be mounted; neither elsewhere."""
    for group in node_groups(assembly):
        taints, labels = _taints(group.group.properties), group.group.properties.get("Labels") or {}
        wrong = None
        if group.has_gpus and taints.get(names.GPU_TAINT) != "NO_SCHEDULE":
            wrong = f"a GPU node group has no taint {names.GPU_TAINT}:NO_SCHEDULE"
        elif group.has_gpus and taints.get(names.STORAGE_TAINT) != "NO_EXECUTE":
            wrong = f"a GPU node group has no start-up taint {names.STORAGE_TAINT}:NO_EXECUTE"
        elif not group.has_gpus and names.GPU_TAINT in taints:
            wrong = f"a node group without GPUs has the taint {names.GPU_TAINT}"
        elif group.has_gpus and labels.get(names.POOL_LABEL) != names.GPU_POOL:
            wrong = f"a GPU node group has no label {names.POOL_LABEL}: {names.GPU_POOL}"
        if wrong:
            yield Finding(
                resource=group.group,
                wrong=wrong,
                why="other pods would fill GPU nodes, or training pods find none, or start before FSx can be mounted",
                write="Taints in CloudFormation's spelling (NO_SCHEDULE, NO_EXECUTE) and Labels as in "
                "holdfast/config/names.py",
            )


RULES = (
    Rule("HF019", "GPU nodes are in one subnet", gpus_are_in_one_subnet),
    Rule("HF020", "GPU nodes have the NVIDIA image of Amazon Linux 2023", gpus_have_the_nvidia_image),
    Rule("HF021", "the sizes of a node group are in order", sizes_are_in_order),
    Rule("HF022", "node repair is well formed", repair_is_well_formed),
    Rule("HF023", "an update of GPU nodes needs no spare ones", gpus_are_updated_in_place_of_one),
    Rule("HF024", "GPU nodes, and they alone, are tainted and labelled for training", gpus_are_kept_for_training),
)
