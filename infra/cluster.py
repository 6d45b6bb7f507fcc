"""Cluster stack: control plane, who may enter it, add-ons, and the two nodes that everything else leans on."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from holdfast.config import RunConfig, names
from infra.addons import AFTER_NODES, BEFORE_NODES, AddOns
from infra.deployment import Deployment
from infra.image import TrainerImage
from infra.nag import acknowledge, managed_policy
from infra.nodes import SystemNodes
from infra.stack import HoldfastStack, node_tags

KUBECTL_LAYERS = {"1.35": KubectlV35Layer}
"""kubectl may be one minor version away from the cluster; it is the same one."""


class ClusterStack(HoldfastStack):
    """`cluster` is the L2 cluster, `system_nodes` its first node group, `add_ons_with_pods` what runs on that."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: RunConfig,
        deployment: Deployment,
        vpc: ec2.IVpc,
        dockerfile_folder: Path,
    ) -> None:
        purpose = "EKS control plane, add-ons, system nodes"
        super().__init__(scope, construct_id, config=config, stack=names.STACK_CLUSTER, purpose=purpose, keep=True)
        self.cluster = self._cluster(config, vpc)
        self._admit(deployment)
        cluster_name = self.cluster.cluster_name
        before = AddOns(self, "AddOnsBeforeNodes", cluster_name=cluster_name, add_ons=BEFORE_NODES)
        after = AddOns(self, "AddOnsAfterNodes", cluster_name=cluster_name, add_ons=AFTER_NODES)
        self.system_nodes = SystemNodes(
            self,
            "SystemNodes",
            cluster_name=cluster_name,
            subnet_ids=[subnet.subnet_id for subnet in vpc.private_subnets],
            instance_type=config.aws.system_instance_type,
            tags=node_tags(config),
        ).group
        self.add_ons_with_pods = after.all
        agent, *others = before.all
        for add_on in others:
            add_on.add_resource_dependency(agent)
        for add_on in before.all:
            self.system_nodes.add_resource_dependency(add_on)
        for add_on in after.all:
            add_on.add_resource_dependency(self.system_nodes)
        cdk.CfnOutput(self, names.OUTPUT_CLUSTER_NAME, value=cluster_name)
        command = f"aws eks update-kubeconfig --region {config.aws.region} --name {cluster_name}"
        if deployment.build_image:
            cdk.CfnOutput(self, names.OUTPUT_IMAGE, value=TrainerImage(self, "Image", folder=dockerfile_folder).uri)
        elif config.image != RunConfig.model_fields["image"].default:
            cdk.CfnOutput(self, names.OUTPUT_IMAGE, value=config.image)
        cdk.CfnOutput(self, "KubeconfigCommand", value=command, description="run it as the administrator role")
        who = "members reach the API server: give it to the instance that kubectl runs on"
        group_id = self.cluster.cluster_security_group_id
        cdk.CfnOutput(self, "ClusterSecurityGroupId", value=group_id, description=who)

    def _cluster(self, config: RunConfig, vpc: ec2.IVpc) -> eks.Cluster:
        version = config.aws.kubernetes_version
        kubectl = None
        if config.aws.apply_manifests:
            layer = KUBECTL_LAYERS[version](self, "Kubectl")
            kubectl = eks.KubectlProviderOptions(kubectl_layer=layer)
        cluster = eks.Cluster(
            self,
            "Cluster",
            version=eks.KubernetesVersion.of(version),
            vpc=vpc,
            vpc_subnets=[ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)],
            endpoint_access=_endpoint(config),
            cluster_logging=list(eks.ClusterLoggingTypes),
            kubectl_provider_options=kubectl,
            # Pruning selects by label with an option of kubectl that is deprecated.
            prune=False,
            # Without these two the L2 makes an Auto Mode cluster.
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Create-only. The creator is CloudFormation's role, which no person can take.
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            output_config_command=False,
        )
        resource = cluster.node.default_child
        assert isinstance(resource, cdk.CfnResource)
        # The L2 has no properties for these. Extended support costs six times as much per hour.
        resource.add_property_override("UpgradePolicy.SupportType", "STANDARD")
        resource.add_property_override("DeletionProtection", config.aws.production)
        _accept_findings(cluster, with_kubectl=kubectl is not None)
        return cluster

    def _admit(self, deployment: Deployment) -> None:
        """Make one role administrator. Without any, nobody could look into the cluster."""
        arn = deployment.admin_role_arn
        if arn is None:
            arn = cdk.CfnParameter(
                self,
                "AdminRoleArn",
                description="IAM role that becomes cluster administrator; -c admin_role_arn=... sets it at synth",
                allowed_pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$",
            ).value_as_string
        policy = eks.AccessPolicy.from_access_policy_name(
            "AmazonEKSClusterAdminPolicy", access_scope_type=eks.AccessScopeType.CLUSTER
        )
        self.cluster.grant_access("Administrator", arn, [policy])


def _endpoint(config: RunConfig) -> eks.EndpointAccess:
    if config.aws.endpoint == "private":
        return eks.EndpointAccess.PRIVATE
    return eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*config.aws.allowed_cidrs)


def _accept_findings(cluster: eks.Cluster, *, with_kubectl: bool) -> None:
    acknowledge(
        cluster, managed_policy("AmazonEKSClusterPolicy"), "EKS documents this policy for the control plane's role."
    )
    if not with_kubectl:
        return
    provider = cluster.node.find_child("KubectlProvider")
    reason = "The CDK's own kubectl Lambda; aws.apply_manifests: false leaves it out."
    handler = "ClusterKubectlProviderHandler"
    public = (
        f'{{"Fn::If":["{handler}HasEcrPublic69E09706",{{"Fn::Join":["",["arn:",{{"Ref":"AWS::Partition"}},'
        '":iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"]]},{"Ref":"AWS::NoValue"}]}'
    )
    rules = [
        managed_policy("service-role/AWSLambdaBasicExecutionRole"),
        managed_policy("service-role/AWSLambdaVPCAccessExecutionRole"),
        managed_policy("AmazonEC2ContainerRegistryReadOnly"),
        f"AwsSolutions-IAM4[Policy::{public}]",
        f"AwsSolutions-IAM5[Resource::<{handler}2E05C68A.Arn>:*]",
        "AwsSolutions-L1",
    ]
    for rule in rules:
        acknowledge(provider, rule, reason)
