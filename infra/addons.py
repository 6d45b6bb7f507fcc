"""EKS add-ons, in an order that CloudFormation does not know: a node without its CNI never becomes ready."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_iam as iam
from aws_cdk.aws_eks import CfnAddon
from constructs import Construct

from infra.nag import acknowledge, managed_policy

BEFORE_NODES = ("eks-pod-identity-agent", "vpc-cni", "kube-proxy")
"""DaemonSets that a node needs in order to join. The first gives the second its credentials."""
AFTER_NODES = ("coredns", "aws-fsx-csi-driver", "eks-node-monitoring-agent")
"""What has pods of its own, and so is healthy only where there are nodes. The daemons of the last two tolerate all
taints by the default of their charts (aws-fsx-csi-driver 1.17.0, eks-node-monitoring-agent 1.7.0)."""


_CONFIGURATION = {
    # Off by default: NetworkPolicy objects are then accepted and do nothing.
    "vpc-cni": '{"enableNetworkPolicy":"true"}',
}
_POD_IDENTITY = iam.ServicePrincipal("pods.eks.amazonaws.com")


class AddOns(Construct):
    """Some of the add-ons; `all` are the L1 resources in the given order. What waits for what is the stack's work."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster_name: str, add_ons: Sequence[str]) -> None:
        super().__init__(scope, construct_id)
        self.all = [
            CfnAddon(
                self,
                name,
                cluster_name=cluster_name,
                addon_name=name,
                # What the add-on finds of itself in the cluster it replaces; what it made goes with it.
                resolve_conflicts="OVERWRITE",
                preserve_on_delete=False,
                configuration_values=_CONFIGURATION.get(name),
                pod_identity_associations=self._identity(name),
            )
            for name in add_ons
        ]

    def _identity(self, add_on: str) -> list[CfnAddon.PodIdentityAssociationProperty] | None:
        if add_on == "vpc-cni":
            role, account = self._cni_role(), "aws-node"
        elif add_on == "aws-fsx-csi-driver":
            role, account = self._csi_role(), "fsx-csi-controller-sa"
        else:
            return None
        return [CfnAddon.PodIdentityAssociationProperty(service_account=account, role_arn=role.role_arn)]

    def _cni_role(self) -> iam.Role:
        policy = iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKS_CNI_Policy")
        role = iam.Role(self, "CniRole", assumed_by=_POD_IDENTITY.with_session_tags(), managed_policies=[policy])
        reason = "The CNI's needs change with its version; AWS keeps this policy in step."
        acknowledge(role, managed_policy("AmazonEKS_CNI_Policy"), reason)
        return role

    def _csi_role(self) -> iam.Role:
        # Our volume is static: the controller makes nothing, so it need not be allowed to.
        role = iam.Role(self, "FsxCsiRole", assumed_by=_POD_IDENTITY.with_session_tags())
        role.add_to_policy(iam.PolicyStatement(actions=["fsx:DescribeFileSystems"], resources=["*"]))
        reason = "DescribeFileSystems reads only, and has no resource-level permissions for a list."
        acknowledge(role, "AwsSolutions-IAM5[Resource::*]", reason)
        return role
