"""Rules about launch templates, and about what they and the node group must not both say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.rules.assembly import Assembly, text_of
from infra.rules.nodes import NodeGroup, gpu_groups, node_groups, templates_of_groups
from infra.rules.rule import Finding, Rule

_FORBIDDEN = ("IamInstanceProfile", "InstanceInitiatedShutdownBehavior", "HibernationOptions")
_PAGE_MIB = 2


def nothing_that_managed_groups_refuse(assembly: Assembly) -> Iterator[Finding]:
    """Fields that EKS keeps for itself."""
    for template, group in templates_of_groups(assembly):
        said = [name for name in _FORBIDDEN if name in group.data]
        market = (group.data.get("InstanceMarketOptions") or {}).get("MarketType")
        if market == "spot":
            said.append("InstanceMarketOptions.MarketType: spot")
        for name in said:
            yield Finding(
                resource=template,
                wrong=f"the launch template says {name}",
                why="EKS refuses a managed node group whose launch template does",
                write="nothing: the node group has NodeRole and CapacityType for it",
            )


def metadata_needs_a_token(assembly: Assembly) -> Iterator[Finding]:
    """IMDSv2."""
    for template, group in templates_of_groups(assembly):
        options = group.data.get("MetadataOptions") or {}
        if options.get("HttpTokens") != "required":
            yield Finding(
                resource=template,
                wrong=f"HttpTokens is {options.get('HttpTokens', 'not set')}",
                why="without it any process, and any server tricked into a request, can read the node's credentials",
                write="MetadataOptions: {HttpTokens: required, HttpPutResponseHopLimit: 1}",
            )


def root_volume_is_encrypted(assembly: Assembly) -> Iterator[Finding]:
    """gp3, encrypted, with a size, since a node group with a template cannot say DiskSize."""
    for template, group in templates_of_groups(assembly):
        volumes = [mapping.get("Ebs") or {} for mapping in group.data.get("BlockDeviceMappings") or []]
        if not any(
            v.get("Encrypted") is True and v.get("VolumeType") == "gp3" and v.get("VolumeSize") for v in volumes
        ):
            yield Finding(
                resource=template,
                wrong="it has no encrypted gp3 root volume with a size",
                why="the default is 20 GiB, which the training image alone fills, and is not encrypted everywhere",
                write="BlockDeviceMappings with /dev/xvda: {Encrypted: true, VolumeType: gp3, VolumeSize: ...}",
            )


def nothing_is_said_twice(assembly: Assembly) -> Iterator[Finding]:
    """What stands in the template must not stand in the node group."""
    for template, group in templates_of_groups(assembly):
        own, data = group.group.properties, group.data
        double: list[str] = [name for name in ("DiskSize", "RemoteAccess") if name in own]
        if "InstanceTypes" in own and "InstanceType" in data:
            double.append("InstanceTypes")
        if "ImageId" in data:
            double += [name for name in ("AmiType", "ReleaseVersion", "Version") if name in own]
        for name in double:
            yield Finding(
                resource=group.group,
                wrong=f"{name} stands in the node group, which has a launch template ({template.logical_id})",
                why="EKS refuses a node group that says it beside a launch template",
                write=f"no {name}; the launch template decides",
            )


def _is_block(group: NodeGroup) -> list[str]:
    """Which of the signs of a Capacity Block a node group shows."""
    target = (group.data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    market = (group.data.get("InstanceMarketOptions") or {}).get("MarketType")
    signs = {
        "CapacityType: CAPACITY_BLOCK": group.group.properties.get("CapacityType") == "CAPACITY_BLOCK",
        "InstanceMarketOptions.MarketType: capacity-block": market == "capacity-block",
        "CapacityReservationTarget.CapacityReservationId": bool(target.get("CapacityReservationId")),
        "InstanceType": bool(group.data.get("InstanceType")),
    }
    return [name for name, is_there in signs.items() if is_there]


def capacity_blocks_are_complete(assembly: Assembly) -> Iterator[Finding]:
    """All four, once the node group or the market says so."""
    for group in node_groups(assembly):
        there = _is_block(group)
        if not any(name.endswith(("CAPACITY_BLOCK", "capacity-block")) for name in there):
            continue
        for name in (
            "CapacityType: CAPACITY_BLOCK",
            "InstanceMarketOptions.MarketType: capacity-block",
            "CapacityReservationTarget.CapacityReservationId",
            "InstanceType",
        ):
            if name not in there:
                yield Finding(
                    resource=group.group if name.startswith("CapacityType") else group.where,
                    wrong=f"a Capacity Block without {name}",
                    why="EKS refuses it, or its nodes never start, while the block is paid for",
                    write="CapacityType at the node group; MarketType, reservation id and InstanceType in the template",
                )


def no_placement_group_for_reserved_nodes(assembly: Assembly) -> Iterator[Finding]:
    """A Capacity Block and a reservation have a place of their own."""
    for group in node_groups(assembly):
        there = _is_block(group)
        reserved = any("capacity-block" in name or "CapacityReservationId" in name for name in there)
        if reserved and (group.data.get("Placement") or {}).get("GroupName"):
            yield Finding(
                resource=group.where,
                wrong="reserved capacity is asked for in a placement group",
                why="EC2 finds no reservation in this group, and starts nothing",
                write="no Placement",
            )


def huge_pages_are_reserved(assembly: Assembly) -> Iterator[Finding]:
    """User data reserves what a training pod asks for."""
    for group in gpu_groups(assembly):
        wanted = group.instance.hugepages_mib if group.instance else 0
        if not wanted:
            continue
        text = text_of(group.data.get("UserData", ""))
        set_up = re.search(r"^wanted=(\d+)$|vm\.nr_hugepages\s*=\s*(\d+)", text, flags=re.MULTILINE)
        pages = int(next(number for number in set_up.groups() if number)) if set_up else 0
        if pages * _PAGE_MIB != wanted:
            yield Finding(
                resource=group.where,
                wrong=f"user data reserves {pages} huge pages of {_PAGE_MIB} MiB; a training pod asks for {wanted} MiB",
                why="with fewer the pod stays Pending for ever; more are memory that nobody can use",
                write=f"{wanted // _PAGE_MIB} pages, from hugepages_mib of the catalog, which the pod also uses",
            )


RULES = (
    Rule("HF012", "launch templates say nothing that EKS keeps for itself", nothing_that_managed_groups_refuse),
    Rule("HF013", "instance metadata needs a token (IMDSv2)", metadata_needs_a_token),
    Rule("HF014", "root volumes are encrypted gp3 of a stated size", root_volume_is_encrypted),
    Rule("HF015", "template and node group do not say the same thing twice", nothing_is_said_twice),
    Rule("HF016", "a Capacity Block has all the fields it needs", capacity_blocks_are_complete),
    Rule("HF017", "reserved capacity is not asked for in a placement group", no_placement_group_for_reserved_nodes),
    Rule("HF018", "a node reserves the huge pages that a training pod asks for", huge_pages_are_reserved),
)
