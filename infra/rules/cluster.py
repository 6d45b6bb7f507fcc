"""Rules about the cluster: who reaches it, who gets in, what is made in which order, tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.rules.assembly import (
    ACCESS_ENTRY,
    ADD_ON,
    BUCKET,
    CLUSTER,
    FILE_SYSTEM,
    LAUNCH_TEMPLATE,
    NODE_GROUP,
    Assembly,
    Resource,
    items,
    text_of,
)
from infra.rules.nodes import NodeGroup, node_groups
from infra.rules.rule import Finding, Rule

_BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
_AFTER_NODES = ("coredns", "aws-fsx-csi-driver", "eks-node-monitoring-agent")
_TAGGED = (CLUSTER, NODE_GROUP, FILE_SYSTEM, BUCKET, "AWS::EC2::VPC", "AWS::EC2::NatGateway")
_LOGS = {"api", "audit", "authenticator"}


def support_is_standard(assembly: Assembly) -> Iterator[Finding]:
    """Extended support is not entered by waiting."""
    for cluster in assembly.of(CLUSTER):
        if (cluster.properties.get("UpgradePolicy") or {}).get("SupportType") != "STANDARD":
            yield Finding(
                resource=cluster,
                wrong="UpgradePolicy.SupportType is not STANDARD",
                why="a version that leaves standard support then costs six times as much per cluster-hour, unasked",
                write="UpgradePolicy: {SupportType: STANDARD}",
            )


def endpoint_is_not_open_to_all(assembly: Assembly) -> Iterator[Finding]:
    """A public endpoint has a list, and not of everyone."""
    for cluster in assembly.of(CLUSTER):
        access = cluster.properties.get("ResourcesVpcConfig") or {}
        if access.get("EndpointPublicAccess") is False:
            continue
        ranges = access.get("PublicAccessCidrs") or ["0.0.0.0/0"]
        if any(str(cidr).endswith("/0") for cidr in ranges):
            yield Finding(
                resource=cluster,
                wrong="the API server can be reached from the whole internet",
                why="EKS opens it to 0.0.0.0/0 unless told otherwise",
                write="EndpointPublicAccess: false, or PublicAccessCidrs of your own ranges (aws.allowed_cidrs)",
            )


def control_plane_is_logged(assembly: Assembly) -> Iterator[Finding]:
    """Who did what must be found out afterwards."""
    for cluster in assembly.of(CLUSTER):
        logging = (cluster.properties.get("Logging") or {}).get("ClusterLogging") or {}
        enabled = {str(entry.get("Type")) for entry in logging.get("EnabledTypes") or []}
        if not enabled >= _LOGS:
            yield Finding(
                resource=cluster,
                wrong=f"control-plane logs lack {', '.join(sorted(_LOGS - enabled))}",
                why="why a node was drained or a pod deleted cannot be found out afterwards",
                write="Logging.ClusterLogging.EnabledTypes with api, audit and authenticator",
            )


def somebody_gets_in(assembly: Assembly) -> Iterator[Finding]:
    """With the creator's own rights off, an access entry makes a person's role administrator."""
    for cluster in assembly.of(CLUSTER):
        access = cluster.properties.get("AccessConfig") or {}
        if access.get("BootstrapClusterCreatorAdminPermissions") is not False:
            continue
        people = [entry for entry in assembly.of(ACCESS_ENTRY) if _is_a_persons_admin(assembly, entry)]
        if not people:
            yield Finding(
                resource=cluster,
                wrong="no access entry makes a role from outside administrator",
                why="the creator has no rights in this cluster; nobody could look into it, only delete it",
                write="an AWS::EKS::AccessEntry with AmazonEKSClusterAdminPolicy (CDK context admin_role_arn)",
            )


def _is_a_persons_admin(assembly: Assembly, entry: Resource) -> bool:
    principal = assembly.target(entry.stack, entry.properties.get("PrincipalArn"))
    policies = [text_of(policy.get("PolicyArn", "")) for policy in items(entry, "AccessPolicies")]
    is_ours = principal is not None and principal.type == "AWS::IAM::Role"
    return not is_ours and any(policy.endswith("AmazonEKSClusterAdminPolicy") for policy in policies)


def _add_ons(assembly: Assembly, names: tuple[str, ...]) -> list[Resource]:
    return [one for one in assembly.of(ADD_ON) if one.properties.get("AddonName") in names]


def add_ons_come_in_order(assembly: Assembly) -> Iterator[Finding]:
    """Network before nodes, nodes before what runs on them, all of it before GPU nodes."""
    groups = node_groups(assembly)
    early, late = _add_ons(assembly, _BEFORE_NODES), _add_ons(assembly, _AFTER_NODES)
    system = [group.group for group in groups if not group.has_gpus]
    wanted: list[tuple[Resource, Resource]] = []
    wanted += [(add_on, group.group) for add_on in early for group in groups]
    wanted += [(group, add_on) for add_on in late for group in system]
    wanted += [(add_on, group.group) for add_on in late for group in groups if group.has_gpus]
    for first, second in wanted:
        if not assembly.before(first, second):
            yield Finding(
                resource=second,
                wrong=f"it does not wait for {_called(first)}",
                why="without the network add-ons nodes never become Ready, and add-ons without nodes never become "
                "ACTIVE; the deployment fails after 20 minutes",
                write=f"DependsOn: {first.logical_id} (node.add_dependency)",
            )


def _called(resource: Resource) -> str:
    name = resource.properties.get("AddonName")
    return f"the add-on {name}" if name else resource.path


def nothing_is_untagged(assembly: Assembly) -> Iterator[Finding]:
    """Project and Owner on what costs money, instances and volumes included; ExpiresAt on all or none, but on no launch
    template."""
    tagged = [(resource, _tags(resource)) for resource in assembly.of(*_TAGGED)]
    templates = [(group.template, _template_tags(group)) for group in node_groups(assembly) if group.template]
    expires = any("ExpiresAt" in tags for _, tags in tagged)
    for resource, tags in [*tagged, *templates]:
        is_template = resource.type == LAUNCH_TEMPLATE
        needed = {"Project", "Owner", *(["ExpiresAt"] if expires and not is_template else [])}
        if is_template and "ExpiresAt" in tags:
            yield Finding(
                resource=resource,
                wrong="it gives the tag ExpiresAt to instances",
                why="a later day changes the template and the node group's own tags at once, which EKS refuses: the "
                "deployment is rolled back",
                write="TagSpecifications with Project and Owner only",
            )
        missing = needed - tags
        if missing:
            where = "TagSpecifications for instance and volume: " if is_template else ""
            yield Finding(
                resource=resource,
                wrong=f"it has no tag {', '.join(sorted(missing))}",
                why="what is left running, and whose it is, is found by these tags; a launch template's own tags do "
                "not reach the instances",
                write=f"{where}{', '.join(sorted(needed))} (Tags.of(app).add)",
            )


def _tags(resource: Resource) -> set[str]:
    tags: Any = resource.properties.get("Tags") or []
    return set(tags) if isinstance(tags, dict) else {str(tag.get("Key")) for tag in tags}


def _template_tags(group: NodeGroup) -> set[str]:
    """Tags that both instances and volumes get."""
    by_type = {
        str(spec.get("ResourceType")): {str(tag.get("Key")) for tag in spec.get("Tags") or []}
        for spec in group.data.get("TagSpecifications") or []
    }
    return by_type.get("instance", set()) & by_type.get("volume", set())


RULES = (
    Rule("HF034", "the cluster stays in standard support", support_is_standard),
    Rule("HF035", "the API server is not open to the whole internet", endpoint_is_not_open_to_all),
    Rule("HF036", "the control plane is logged", control_plane_is_logged),
    Rule("HF037", "somebody can get into the cluster", somebody_gets_in),
    Rule("HF038", "add-ons and node groups are made in an order that works", add_ons_come_in_order),
    Rule("HF039", "whatever costs money is tagged", nothing_is_untagged),
)
