"""Gpu stack: the nodes that cost the money and nothing else. `cdk destroy Gpu` stops the spending, keeps the data."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk.aws_eks import CfnNodegroup
from constructs import Construct

from holdfast.config import RunConfig, names
from infra import security
from infra.capacity import Purchase, purchase
from infra.deployment import Deployment
from infra.nics import interfaces
from infra.nodes import launch, node_role, node_template
from infra.stack import HoldfastStack, node_tags
from infra.user_data import user_data

ROOT_GIB = 300
"""The image is about 25 GiB unpacked, and logs and a second image must fit on nodes without local disks."""


class EfaSecurityGroup(Construct):
    """Group of the EFA interfaces; everything passes between members, both ways. `group_id`."""

    def __init__(self, scope: Construct, construct_id: str, *, vpc_id: str) -> None:
        super().__init__(scope, construct_id)
        group = ec2.CfnSecurityGroup(self, "Resource", group_description="EFA between GPU nodes", vpc_id=vpc_id)
        self.group_id = own = group.attr_group_id
        security.allow_in(self, "In", group_id=own, peer_id=own)
        security.allow_out(self, "Out", group_id=own, peer_id=own)


class GpuNodes(Construct):
    """The GPU node group: `group` and its launch `template`, both L1.

    L1, because the L2 of aws_eks_v2 takes P5 for a type of another architecture and has no network interfaces, capacity
    reservations or repair overrides.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: RunConfig,
        cluster_name: str,
        subnet_id: str,
        nodes_group_id: str,
        efa_group_ids: Sequence[str],
        bought: Purchase,
    ) -> None:
        """`nodes_group_id`: the cluster's own security group; given any interface, EKS does not add it by itself."""
        super().__init__(scope, construct_id)
        placement = None
        if bought.placement_group:
            placement = ec2.CfnPlacementGroup(self, "Placement", strategy="cluster").ref
        self.template = self._template(config, nodes_group_id, efa_group_ids, bought, placement)
        capacity = config.aws.capacity
        self.group = CfnNodegroup(
            self,
            "Group",
            cluster_name=cluster_name,
            node_role=node_role(self, "Role").role_arn,
            # One: a collective that crosses zones is slow, costs money, and no placement group spans two.
            subnets=[subnet_id],
            ami_type="AL2023_x86_64_NVIDIA",
            capacity_type=bought.capacity_type,
            launch_template=launch(self.template),
            scaling_config=CfnNodegroup.ScalingConfigProperty(
                min_size=0, desired_size=capacity.desired_nodes, max_size=capacity.max_nodes or config.pods
            ),
            # The default launches new nodes first: twice the GPUs, which nobody has.
            update_config=CfnNodegroup.UpdateConfigProperty(max_unavailable=1, update_strategy="MINIMAL"),
            node_repair_config=_repair(),
            labels={names.POOL_LABEL: names.GPU_POOL},
            taints=[
                CfnNodegroup.TaintProperty(key=names.GPU_TAINT, value=names.GPU_TAINT_VALUE, effect="NO_SCHEDULE"),
                CfnNodegroup.TaintProperty(key=names.STORAGE_TAINT, effect="NO_EXECUTE"),
            ],
        )

    def _template(
        self,
        config: RunConfig,
        nodes_group_id: str,
        efa_group_ids: Sequence[str],
        bought: Purchase,
        placement: str | None,
    ) -> ec2.CfnLaunchTemplate:
        instance, text = config.instance, user_data(config.instance)
        common = node_template(instance_type=instance.name, root_gib=ROOT_GIB, tags=node_tags(config))
        nics = [
            ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
                network_card_index=nic.card,
                device_index=nic.device,
                interface_type=nic.kind,
                # Groups stand on each interface; a list for the whole template would be refused beside them.
                groups=[*([nodes_group_id] if nic.is_primary else []), *(efa_group_ids if nic.is_efa else [])],
                delete_on_termination=True,
            )
            for nic in interfaces(instance, config.aws.nic_layout)
        ]
        data = ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
            **common,
            network_interfaces=nics,
            user_data=cdk.Fn.base64(text) if text else None,
            placement=ec2.CfnLaunchTemplate.PlacementProperty(group_name=placement) if placement else None,
            capacity_reservation_specification=bought.reservation,
            instance_market_options=bought.market,
        )
        return ec2.CfnLaunchTemplate(self, "Template", launch_template_data=data)


def _repair() -> CfnNodegroup.NodeRepairConfigProperty:
    """One node at a time, and not for an alarm that is known to be false."""
    lost_dcgm = CfnNodegroup.NodeRepairConfigOverridesProperty(
        # "Connection to the DCGM host process was lost": says nothing about the GPU, and has been seen on healthy nodes
        # (github.com/aws/eks-node-monitoring-agent/issues/266). All four fields, or the override is refused.
        node_monitoring_condition="AcceleratedHardwareReady",
        node_unhealthy_reason="DCGMError",
        min_repair_wait_time_mins=30,
        repair_action="NoAction",
    )
    return CfnNodegroup.NodeRepairConfigProperty(
        enabled=True, max_parallel_nodes_repaired_count=1, node_repair_config_overrides=[lost_dcgm]
    )


class GpuStack(HoldfastStack):
    """Launch template, security group, placement group, node group."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: RunConfig,
        deployment: Deployment,
        cluster_name: str,
        nodes_group_id: str,
        vpc: ec2.IVpc,
        gpu_subnet: ec2.ISubnet,
        storage_efa_group_id: str | None,
    ) -> None:
        """`storage_efa_group_id`: the file system's group, where FSx speaks EFA."""
        purpose = f"{config.instance.name} nodes in {config.aws.gpu_zone}"
        super().__init__(scope, construct_id, config=config, stack=names.STACK_GPU, purpose=purpose)
        efa_groups = []
        if config.instance.efa:
            efa_groups.append(EfaSecurityGroup(self, "Efa", vpc_id=vpc.vpc_id).group_id)
            efa_groups += [storage_efa_group_id] if storage_efa_group_id else []
        self.nodes = GpuNodes(
            self,
            "Nodes",
            config=config,
            cluster_name=cluster_name,
            subnet_id=gpu_subnet.subnet_id,
            nodes_group_id=nodes_group_id,
            efa_group_ids=efa_groups,
            bought=purchase(config.aws.capacity, deployment.capacity_reservation_id),
        )
        if deployment.capacity_end is not None:
            why = "EKS drains the nodes from 40 minutes before; checkpoint and stop in time"
            cdk.CfnOutput(self, names.OUTPUT_CAPACITY_ENDS_AT, value=deployment.capacity_end, description=why)
