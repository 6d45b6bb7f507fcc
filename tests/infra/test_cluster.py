"""The control plane and its add-ons: version, who may reach it and enter it, and what comes before what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infra.assembly import MANIFEST, NODEGROUP, Assembly, Node
from tests.infra.conftest import Synth

CLUSTER = "AWS::EKS::Cluster"
ADD_ON = "AWS::EKS::Addon"
ENTRY = "AWS::EKS::AccessEntry"
ROLE = "arn:aws:iam::111122223333:role/Admin"


def add_ons(assembly: Assembly) -> dict[str, tuple[str, Any]]:
    """Name of the add-on -> (logical id, resource)."""
    found = assembly.all("Cluster", ADD_ON).items()
    return {resource["Properties"]["AddonName"]: (name, resource) for name, resource in found}


def test_the_version_is_in_standard_support_and_stays_there(assembly: Assembly) -> None:
    cluster = assembly.one("Cluster", CLUSTER)
    assert cluster["Version"] == "1.35" and cluster["UpgradePolicy"] == {"SupportType": "STANDARD"}


def test_the_control_plane_logs_everything(assembly: Assembly) -> None:
    logging = assembly.one("Cluster", CLUSTER)["Logging"]["ClusterLogging"]["EnabledTypes"]
    assert {entry["Type"] for entry in logging} == {"api", "audit", "authenticator", "controllerManager", "scheduler"}


def test_it_is_no_auto_mode_cluster(assembly: Assembly) -> None:
    cluster = assembly.one("Cluster", CLUSTER)
    assert cluster["ComputeConfig"] == {"Enabled": False} and cluster["BootstrapSelfManagedAddons"] is False


def test_the_endpoint_is_private(assembly: Assembly) -> None:
    vpc = assembly.one("Cluster", CLUSTER)["ResourcesVpcConfig"]
    assert (vpc["EndpointPrivateAccess"], vpc["EndpointPublicAccess"]) == (True, False)


def test_a_public_endpoint_admits_the_listed_ranges_only(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "aws.endpoint=allow_listed", "aws.allowed_cidrs=[203.0.113.0/24]")
    vpc = built.one("Cluster", CLUSTER)["ResourcesVpcConfig"]
    assert (vpc["EndpointPrivateAccess"], vpc["EndpointPublicAccess"]) == (True, True)
    assert vpc["PublicAccessCidrs"] == ["203.0.113.0/24"]


def test_the_administrator_is_a_role_and_never_whoever_created_the_cluster(synth: Synth) -> None:
    built = synth("gpt2-g5x2", f"admin_role_arn={ROLE}", "aws.apply_manifests=false")
    access = built.one("Cluster", CLUSTER)["AccessConfig"]
    assert access == {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    entry = built.one("Cluster", ENTRY)
    assert entry["PrincipalArn"] == ROLE
    (policy,) = entry["AccessPolicies"]
    assert "AmazonEKSClusterAdminPolicy" in str(policy["PolicyArn"]) and policy["AccessScope"] == {"Type": "cluster"}
    assert "AdminRoleArn" not in built.templates["Cluster"]["Parameters"]


def test_without_a_role_the_deployment_asks_for_one(p5: Assembly) -> None:
    parameter = p5.templates["Cluster"]["Parameters"]["AdminRoleArn"]
    assert "Default" not in parameter and parameter["AllowedPattern"].startswith("^arn:aws")
    principals = [entry["Properties"]["PrincipalArn"] for entry in p5.all("Cluster", ENTRY).values()]
    assert {"Ref": "AdminRoleArn"} in principals


def test_without_manifests_there_is_no_lambda_that_is_administrator(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "aws.apply_manifests=false")
    assert "Workload" not in built.templates
    kinds = {resource["Type"] for resource in built.templates["Cluster"]["Resources"].values()}
    assert not [kind for kind in kinds if "Lambda" in kind] and len(built.all("Cluster", ENTRY)) == 1


def test_all_add_ons_are_there(assembly: Assembly) -> None:
    before = {"eks-pod-identity-agent", "vpc-cni", "kube-proxy"}
    assert set(add_ons(assembly)) == before | {"coredns", "aws-fsx-csi-driver", "eks-node-monitoring-agent"}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("eks-pod-identity-agent", "vpc-cni"),
        ("eks-pod-identity-agent", "nodes"),
        ("vpc-cni", "nodes"),
        ("kube-proxy", "nodes"),
        ("nodes", "coredns"),
        ("nodes", "aws-fsx-csi-driver"),
        ("nodes", "eks-node-monitoring-agent"),
    ],
)
def test_what_a_node_needs_comes_before_it_and_what_needs_nodes_after(
    assembly: Assembly, first: str, then: str
) -> None:
    found = {**add_ons(assembly), "nodes": next(iter(assembly.all("Cluster", NODEGROUP).items()))}
    assert found[first][0] in found[then][1]["DependsOn"]


def test_gpu_nodes_and_manifests_come_after_all_add_ons(assembly: Assembly) -> None:
    later = [Node("Gpu", name) for name in assembly.all("Gpu", NODEGROUP)]
    later += [Node("Workload", name) for name in assembly.all("Workload", MANIFEST)]
    wanted = {Node("Cluster", name) for name, _ in add_ons(assembly).values()}
    assert len(later) > 2 and all(wanted <= assembly.everything_before(node) for node in later)


def test_credentials_come_by_pod_identity(assembly: Assembly) -> None:
    found = add_ons(assembly)
    accounts = {"vpc-cni": "aws-node", "aws-fsx-csi-driver": "fsx-csi-controller-sa"}
    for name, account in accounts.items():
        (association,) = found[name][1]["Properties"]["PodIdentityAssociations"]
        role = assembly.templates["Cluster"]["Resources"][association["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert association["ServiceAccount"] == account and trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        assert trust["Action"] == ["sts:AssumeRole", "sts:TagSession"]


@pytest.mark.parametrize("stack", ["Cluster", "Gpu"])
def test_nodes_have_no_policy_of_the_cni(assembly: Assembly, stack: str) -> None:
    role = assembly.one(stack, NODEGROUP)["NodeRole"]["Fn::GetAtt"][0]
    assert "CNI" not in str(assembly.templates[stack]["Resources"][role]["Properties"]["ManagedPolicyArns"])


def test_network_policies_are_enforced(assembly: Assembly) -> None:
    values = add_ons(assembly)["vpc-cni"][1]["Properties"]["ConfigurationValues"]
    assert values == '{"enableNetworkPolicy":"true"}'


def test_production_protects_what_cannot_be_made_again(synth: Synth, assembly: Assembly) -> None:
    import json

    built = synth("gpt2-g5x2", "aws.production=true")
    for found, wanted in ((built, True), (assembly, False)):
        artifacts = json.loads((found.folder / "manifest.json").read_text())["artifacts"]
        protected = {s for s in found.templates if artifacts[s]["properties"].get("terminationProtection")}
        assert protected == ({"Network", "Cluster", "Storage"} if wanted else set())
        assert found.one("Cluster", CLUSTER)["DeletionProtection"] is wanted


def test_a_budget_warns_the_given_address(synth: Synth, p5: Assembly) -> None:
    built = synth("gpt2-g5x2", "cost.monthly_budget_usd=500", "budget_email=ada@example.com")
    budget = built.one("Network", "AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 500, "Unit": "USD"}
    for warning in budget["NotificationsWithSubscribers"]:
        assert warning["Subscribers"] == [{"SubscriptionType": "EMAIL", "Address": "ada@example.com"}]
    assert not p5.all("Network", "AWS::Budgets::Budget")
