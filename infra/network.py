"""Network stack: a VPC with private subnets, one way out, and S3 beside it."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from holdfast.config import RunConfig, names
from holdfast.config.aws import MOST_ZONES
from infra.budget import Budget
from infra.deployment import Deployment
from infra.nag import acknowledge
from infra.stack import HoldfastStack


class NetworkStack(HoldfastStack):
    """VPC, flow log, budget. `vpc` for all; `gpu_subnet` is the one subnet of GPU nodes and file system."""

    def __init__(self, scope: Construct, construct_id: str, *, config: RunConfig, deployment: Deployment) -> None:
        purpose = "VPC, one NAT gateway, S3 endpoint, flow log"
        super().__init__(scope, construct_id, config=config, stack=names.STACK_NETWORK, purpose=purpose, keep=True)
        self.vpc = self._vpc(config)
        zones = "GPU capacity is bought in one zone; the config names it, and no call to AWS chooses another."
        acknowledge(self.vpc, "CloudFormation-Validate::W3010", zones)
        self.gpu_subnet = self.vpc.select_subnets(
            subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, availability_zones=[config.aws.gpu_zone]
        ).subnets[0]
        self._flow_log()
        if config.cost.monthly_budget_usd is not None and deployment.budget_email is not None:
            Budget(self, "Budget", monthly_usd=config.cost.monthly_budget_usd, email=deployment.budget_email)

    def _vpc(self, config: RunConfig) -> ec2.Vpc:
        return ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(config.aws.vpc_cidr),
            availability_zones=list(config.aws.zones),
            # Addresses for three zones from the start: the CDK hands them out in order, and a zone added later would
            # get those of a public subnet that is there.
            reserved_azs=MOST_ZONES - len(config.aws.zones),
            subnet_configuration=[
                # 8187 addresses: pods of the VPC CNI take theirs from the nodes' subnet.
                ec2.SubnetConfiguration(name="private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=19),
                ec2.SubnetConfiguration(
                    name="public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=24, map_public_ip_on_launch=False
                ),
            ],
            # One, where the GPU nodes are: image layers then cross no zone. Training itself needs no way out.
            nat_gateways=1,
            nat_gateway_subnets=ec2.SubnetSelection(
                subnet_type=ec2.SubnetType.PUBLIC, availability_zones=[config.aws.gpu_zone]
            ),
            gateway_endpoints={"S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)},
            # It would take a Lambda. Nothing uses the default group.
            restrict_default_security_group=False,
        )

    def _flow_log(self) -> None:
        group = logs.LogGroup(
            self, "FlowLogs", retention=logs.RetentionDays.ONE_MONTH, removal_policy=RemovalPolicy.DESTROY
        )
        role = iam.Role(self, "FlowLogRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        self.vpc.add_flow_log(
            "FlowLog",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(group, role),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )
