"""What both node groups share: the role, the disk, the metadata service, the tags; and the system node group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from aws_cdk import CfnTag
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk.aws_eks import CfnNodegroup
from constructs import Construct

from holdfast.config import names
from holdfast.config.prices import SYSTEM_NODES
from infra.nag import acknowledge, managed_policy

ROOT_DEVICE = "/dev/xvda"
"""Root volume of Amazon Linux 2023."""

_Template = ec2.CfnLaunchTemplate
_POLICIES = {
    "AmazonEKSWorkerNodePolicy": "a node must describe itself to join the cluster",
    "AmazonEC2ContainerRegistryPullOnly": "a node must pull images",
    "AmazonSSMManagedInstanceCore": "a shell on a broken node without SSH keys or open ports",
}


def node_role(scope: Construct, construct_id: str) -> iam.Role:
    """Role of a group's nodes: join, pull images, Session Manager. No CNI policy: the CNI has a role of its own."""
    managed = [iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _POLICIES]
    role = iam.Role(scope, construct_id, assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"), managed_policies=managed)
    for name, reason in _POLICIES.items():
        acknowledge(role, managed_policy(name), f"AWS keeps this policy current with EKS: {reason}.")
    return role


class NodeTemplate(TypedDict):
    """The launch template data that every node has; keyword arguments of LaunchTemplateDataProperty."""

    instance_type: str
    block_device_mappings: list[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty]
    metadata_options: ec2.CfnLaunchTemplate.MetadataOptionsProperty
    tag_specifications: list[ec2.CfnLaunchTemplate.TagSpecificationProperty]


def node_template(*, instance_type: str, root_gib: int, tags: Mapping[str, str]) -> NodeTemplate:
    """The instance type stands here and nowhere in the node group: EKS refuses it in both."""
    pairs = [CfnTag(key=key, value=value) for key, value in tags.items()]
    return {
        "instance_type": instance_type,
        "block_device_mappings": [
            _Template.BlockDeviceMappingProperty(
                device_name=ROOT_DEVICE,
                ebs=_Template.EbsProperty(
                    volume_type="gp3", volume_size=root_gib, encrypted=True, delete_on_termination=True
                ),
            )
        ],
        # IMDSv2, one hop: a pod cannot take the node's credentials. What needs credentials has Pod Identity.
        "metadata_options": _Template.MetadataOptionsProperty(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        "tag_specifications": [
            _Template.TagSpecificationProperty(resource_type=kind, tags=pairs)
            for kind in ("instance", "volume", "network-interface")
        ],
    }


class SystemNodes(Construct):
    """Two CPU nodes in two zones, for the control pod and the add-ons. `group` is the L1 node group."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster_name: str,
        subnet_ids: Sequence[str],
        instance_type: str,
        tags: Mapping[str, str],
    ) -> None:
        super().__init__(scope, construct_id)
        data = node_template(instance_type=instance_type, root_gib=100, tags=tags)
        template = _Template(self, "Template", launch_template_data=_Template.LaunchTemplateDataProperty(**data))
        self.group = CfnNodegroup(
            self,
            "Group",
            cluster_name=cluster_name,
            node_role=node_role(self, "Role").role_arn,
            subnets=subnet_ids,
            ami_type="AL2023_x86_64_STANDARD",
            capacity_type="ON_DEMAND",
            launch_template=launch(template),
            scaling_config=CfnNodegroup.ScalingConfigProperty(
                min_size=SYSTEM_NODES, desired_size=SYSTEM_NODES, max_size=SYSTEM_NODES + 1
            ),
            update_config=CfnNodegroup.UpdateConfigProperty(max_unavailable=1),
            node_repair_config=CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            labels={names.POOL_LABEL: names.SYSTEM_POOL},
        )


def launch(template: ec2.CfnLaunchTemplate) -> CfnNodegroup.LaunchTemplateSpecificationProperty:
    """The newest version of a launch template, as a node group names it."""
    return CfnNodegroup.LaunchTemplateSpecificationProperty(
        id=template.ref, version=template.attr_latest_version_number
    )
