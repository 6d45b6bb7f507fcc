"""Rules about the network interfaces of nodes and the security groups on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from infra.rules.assembly import CLUSTER, SECURITY_GROUP, Assembly, Resource, items
from infra.rules.nodes import gpu_groups, is_efa, node_groups, slot
from infra.rules.rule import Finding, Rule

_PEER = {"Ingress": "SourceSecurityGroupId", "Egress": "DestinationSecurityGroupId"}


def slots_are_unique(assembly: Assembly) -> Iterator[Finding]:
    """No two interfaces on one card and device."""
    for group in node_groups(assembly):
        taken = Counter(slot(interface) for interface in group.interfaces)
        for (card, device), count in taken.items():
            if count > 1:
                yield Finding(
                    resource=group.where,
                    wrong=f"{count} interfaces have network card {card}, device {device}",
                    why="EC2 refuses to start an instance with two interfaces in one slot",
                    write="give each interface its own NetworkCardIndex and DeviceIndex",
                )


def primary_has_an_address(assembly: Assembly) -> Iterator[Finding]:
    """Card 0, device 0 exists and is not efa-only."""
    for group in node_groups(assembly):
        primary = next((one for one in group.interfaces if slot(one) == (0, 0)), None)
        if not group.interfaces or (primary and primary.get("InterfaceType") != "efa-only"):
            continue
        yield Finding(
            resource=group.where,
            wrong="the primary interface is efa-only" if primary else "no interface is on network card 0, device 0",
            why="an efa-only interface has no IP address, and the node needs one to join the cluster",
            write="card 0, device 0 with InterfaceType efa or interface",
        )


def efa_devices_match_the_catalog(assembly: Assembly) -> Iterator[Finding]:
    """As many EFA interfaces as a worker pod asks for."""
    for group in gpu_groups(assembly):
        if group.instance is None:
            continue
        count = sum(is_efa(interface) for interface in group.interfaces)
        if count != group.instance.efa:
            yield Finding(
                resource=group.where,
                wrong=f"{count} EFA interfaces on {group.instance.name}, which is used with {group.instance.efa}",
                why="a training pod asks for that many vpc.amazonaws.com/efa, and would stay Pending on this node",
                write=f"{group.instance.efa} interfaces of type efa or efa-only",
            )


def slots_exist_on_the_card(assembly: Assembly) -> Iterator[Finding]:
    """Device index 0 or 1, on a card that the type has."""
    for group in node_groups(assembly):
        cards = group.instance.network_cards if group.instance else None
        for card, device in map(slot, group.interfaces):
            if device > 1 or (cards is not None and card >= cards):
                yield Finding(
                    resource=group.where,
                    wrong=f"there is an interface on network card {card}, device {device}",
                    why=f"each card takes devices 0 and 1, and the type has {cards or 'fewer'} cards",
                    write="cards from 0 on, and device 0 or 1 on each; do not count devices up over the cards",
                )
                break


def groups_stand_on_the_interfaces_only(assembly: Assembly) -> Iterator[Finding]:
    """Security groups on each interface, and none beside them."""
    for group in node_groups(assembly):
        if not group.interfaces:
            continue
        if group.data.get("SecurityGroupIds") or group.data.get("SecurityGroups"):
            yield Finding(
                resource=group.where,
                wrong="security groups stand both at the template and at its interfaces",
                why="EC2 refuses a template with network interfaces and a list of its own",
                write="Groups at each interface, and no SecurityGroupIds",
            )
        bare = [slot(interface) for interface in group.interfaces if not interface.get("Groups")]
        if bare:
            yield Finding(
                resource=group.where,
                wrong=f"{len(bare)} interfaces, the first on card {bare[0][0]}, have no security group",
                why="they get the default group of the VPC, which does not let EFA traffic or the control plane in",
                write="Groups at each interface",
            )


def no_subnet_in_the_template(assembly: Assembly) -> Iterator[Finding]:
    """The node group chooses the subnet."""
    for group in node_groups(assembly):
        if any("SubnetId" in interface for interface in group.interfaces):
            yield Finding(
                resource=group.where,
                wrong="an interface names a SubnetId",
                why="EKS refuses a node group whose launch template does; the subnet is the node group's",
                write="Subnets at the node group only",
            )


def no_public_address(assembly: Assembly) -> Iterator[Finding]:
    """AssociatePublicIpAddress does not appear."""
    for group in node_groups(assembly):
        if len(group.interfaces) > 1 and any("AssociatePublicIpAddress" in one for one in group.interfaces):
            yield Finding(
                resource=group.where,
                wrong="an interface says AssociatePublicIpAddress",
                why="EC2 refuses it for an instance with more than one interface",
                write="nothing: private subnets with a NAT gateway",
            )


def primary_is_in_the_cluster_group(assembly: Assembly) -> Iterator[Finding]:
    """The cluster's own security group is on the interface that carries the kubelet."""
    for group in node_groups(assembly):
        primary = next((one for one in group.interfaces if slot(one) == (0, 0)), None)
        if primary is None or not primary.get("Groups"):
            continue
        targets = [assembly.target(group.where.stack, value) for value in primary["Groups"]]
        if not any(target and target.type == CLUSTER for target in targets):
            yield Finding(
                resource=group.where,
                wrong="the primary interface is not in the cluster security group",
                why="EKS adds that group only to templates that name none; these nodes would never join",
                write="the cluster's ClusterSecurityGroupId among the Groups of the primary interface",
            )


def _rules(assembly: Assembly, group: Resource, direction: str) -> Iterator[dict[str, Any]]:
    """Rules of a security group, its own and those that are resources. direction: Ingress or Egress."""
    yield from items(group, f"SecurityGroup{direction}")
    for rule in assembly.of(f"AWS::EC2::SecurityGroup{direction}"):
        if assembly.target(rule.stack, rule.properties.get("GroupId")) == group:
            yield rule.properties


def _reaches_itself(assembly: Assembly, group: Resource, direction: str) -> bool:
    peer = _PEER[direction]
    rules = _rules(assembly, group, direction)
    return any(
        str(rule.get("IpProtocol")) == "-1" and assembly.target(group.stack, rule.get(peer)) == group for rule in rules
    )


def _efa_to_itself(assembly: Assembly, direction: str) -> Iterator[Finding]:
    what = "in from itself" if direction == "Ingress" else "out to itself"
    for group in gpu_groups(assembly):
        for interface in filter(is_efa, group.interfaces):
            targets = [assembly.target(group.where.stack, value) for value in interface.get("Groups") or []]
            own = [target for target in targets if target and target.type == SECURITY_GROUP]
            if targets and not any(_reaches_itself(assembly, one, direction) for one in own):
                yield Finding(
                    resource=own[0] if own else group.where,
                    wrong=f"no security group of an EFA interface lets all traffic {what}",
                    why="EFA needs a rule for all protocols with the group itself as peer; 0.0.0.0/0 does not count",
                    write=f"a SecurityGroup{direction} with IpProtocol -1 and {_PEER[direction]} = the group's own id "
                    "(and allow_all_outbound=False, with which the CDK does not drop it)",
                )
                break


def efa_comes_in_from_itself(assembly: Assembly) -> Iterator[Finding]:
    """Ingress of the EFA security group."""
    yield from _efa_to_itself(assembly, "Ingress")


def efa_goes_out_to_itself(assembly: Assembly) -> Iterator[Finding]:
    """Egress of the EFA security group."""
    yield from _efa_to_itself(assembly, "Egress")


def one_group_has_the_cluster_tag(assembly: Assembly) -> Iterator[Finding]:
    """On no interface two groups with kubernetes.io/cluster/<name>; the cluster's own group always has it."""
    for group in node_groups(assembly):
        for interface in group.interfaces:
            targets = [assembly.target(group.where.stack, value) for value in interface.get("Groups") or []]
            tagged = [one for one in targets if one and (one.type == CLUSTER or _has_cluster_tag(one))]
            if len(tagged) > 1:
                extra = next(one for one in tagged if one.type != CLUSTER)
                yield Finding(
                    resource=extra,
                    wrong="a second security group on one interface has a tag kubernetes.io/cluster/<name>",
                    why="a load balancer controller looks for exactly one per interface, and fails with two",
                    write="no such tag; EKS tags the cluster security group itself",
                )
                break


def _has_cluster_tag(group: Resource) -> bool:
    return any(str(tag.get("Key", "")).startswith("kubernetes.io/cluster/") for tag in items(group, "Tags"))


RULES = (
    Rule("HF001", "each network interface has its own card and device", slots_are_unique),
    Rule("HF002", "the primary interface has an IP address", primary_has_an_address),
    Rule("HF003", "a node has the EFA devices that a training pod asks for", efa_devices_match_the_catalog),
    Rule("HF004", "every interface is in a slot that the type has", slots_exist_on_the_card),
    Rule("HF005", "security groups stand at each interface and only there", groups_stand_on_the_interfaces_only),
    Rule("HF006", "no launch template names a subnet", no_subnet_in_the_template),
    Rule("HF007", "no node with several interfaces asks for a public address", no_public_address),
    Rule("HF008", "the primary interface is in the cluster security group", primary_is_in_the_cluster_group),
    Rule("HF009", "the EFA security group lets itself in", efa_comes_in_from_itself),
    Rule("HF010", "the EFA security group lets itself out", efa_goes_out_to_itself),
    Rule("HF011", "at most one security group of an interface has the cluster tag", one_group_has_the_cluster_tag),
)
