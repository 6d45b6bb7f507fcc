"""What several rules ask about node groups: which have GPUs, their launch template, type, interfaces and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.config.instances import CATALOG, Instance
from infra.rules.assembly import LAUNCH_TEMPLATE, NODE_GROUP, Assembly, Resource


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """A managed node group with its launch template, if that is in the assembly."""

    group: Resource
    template: Resource | None
    data: dict[str, Any]
    """LaunchTemplateData; empty without a template."""
    instance: Instance | None
    """From the catalog; None for a type that is not in it."""

    @property
    def has_gpus(self) -> bool:
        """By its type, or by its AMI where the type is not known."""
        ami = str(self.group.properties.get("AmiType", ""))
        return bool(self.instance and self.instance.gpus) or "NVIDIA" in ami.upper()

    @property
    def interfaces(self) -> list[dict[str, Any]]:
        """Of the launch template."""
        return list(self.data.get("NetworkInterfaces") or [])

    @property
    def where(self) -> Resource:
        """The resource to blame for what the launch template says."""
        return self.template or self.group


def node_groups(assembly: Assembly) -> list[NodeGroup]:
    """All managed node groups."""
    return [_node_group(assembly, group) for group in assembly.of(NODE_GROUP)]


def gpu_groups(assembly: Assembly) -> list[NodeGroup]:
    """Those with GPUs."""
    return [group for group in node_groups(assembly) if group.has_gpus]


def _node_group(assembly: Assembly, group: Resource) -> NodeGroup:
    reference = (group.properties.get("LaunchTemplate") or {}).get("Id")
    template = assembly.target(group.stack, reference)
    if template is not None and template.type != LAUNCH_TEMPLATE:
        template = None
    data = dict(template.properties.get("LaunchTemplateData") or {}) if template else {}
    listed = group.properties.get("InstanceTypes") or [None]
    return NodeGroup(
        group=group, template=template, data=data, instance=CATALOG.get(str(data.get("InstanceType") or listed[0]))
    )


def is_efa(interface: dict[str, Any]) -> bool:
    """Whether an interface gives the node an EFA device."""
    return interface.get("InterfaceType") in ("efa", "efa-only")


def slot(interface: dict[str, Any]) -> tuple[int, int]:
    """(network card, device); EC2 takes 0 for what is not said."""
    return int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)


def templates_of_groups(assembly: Assembly) -> Iterator[tuple[Resource, NodeGroup]]:
    """Every launch template that a node group uses, with the group."""
    for group in node_groups(assembly):
        if group.template is not None:
            yield group.template, group
