"""The GPU node group: what costs money, breaks training, or is refused by EKS (cases 20 and 21)."""

from __future__ import annotations

import pytest

from holdfast.config import names
from tests.infra.assembly import NODEGROUP, TEMPLATE, Assembly
from tests.infra.conftest import Synth


def test_no_node_runs_until_somebody_scales_the_group_up(assembly: Assembly) -> None:
    scaling = assembly.one("Gpu", NODEGROUP)["ScalingConfig"]
    assert scaling == {"MinSize": 0, "DesiredSize": 0, "MaxSize": assembly.config.pods}


def test_sizes_come_from_the_config(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "aws.capacity.desired_nodes=2", "aws.capacity.max_nodes=3", "aws.apply_manifests=false")
    assert built.one("Gpu", NODEGROUP)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 2, "MaxSize": 3}


def test_the_stack_of_gpu_nodes_holds_nothing_that_must_outlive_them(p5: Assembly) -> None:
    kinds = {resource["Type"] for resource in p5.templates["Gpu"]["Resources"].values()}
    assert kinds == {
        NODEGROUP,
        TEMPLATE,
        "AWS::EC2::PlacementGroup",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::IAM::Role",
    }


@pytest.mark.parametrize("stack", ["Gpu", "Cluster"])
def test_a_node_group_repeats_nothing_of_its_launch_template(assembly: Assembly, stack: str) -> None:
    group, data = assembly.one(stack, NODEGROUP), assembly.one(stack, TEMPLATE)["LaunchTemplateData"]
    assert not {"DiskSize", "InstanceTypes", "RemoteAccess", "NodegroupName", "ReleaseVersion", "Version"} & set(group)
    assert data["InstanceType"] and "ImageId" not in data, "EKS chooses the image, and so merges its own user data"
    forbidden = {"IamInstanceProfile", "InstanceInitiatedShutdownBehavior", "HibernationOptions", "SecurityGroupIds"}
    assert not forbidden & set(data)


@pytest.mark.parametrize("stack", ["Gpu", "Cluster"])
def test_a_node_group_uses_the_newest_version_of_its_template(assembly: Assembly, stack: str) -> None:
    (name,) = assembly.all(stack, TEMPLATE)
    launch = assembly.one(stack, NODEGROUP)["LaunchTemplate"]
    assert launch == {"Id": {"Ref": name}, "Version": {"Fn::GetAtt": [name, "LatestVersionNumber"]}}


@pytest.mark.parametrize(("stack", "size"), [("Gpu", 300), ("Cluster", 100)])
def test_root_volumes_are_encrypted_gp3_of_stated_size(assembly: Assembly, stack: str, size: int) -> None:
    (disk,) = assembly.one(stack, TEMPLATE)["LaunchTemplateData"]["BlockDeviceMappings"]
    wanted = {"VolumeType": "gp3", "VolumeSize": size, "Encrypted": True, "DeleteOnTermination": True}
    assert disk == {"DeviceName": "/dev/xvda", "Ebs": wanted}


@pytest.mark.parametrize("stack", ["Gpu", "Cluster"])
def test_pods_cannot_take_the_nodes_credentials(assembly: Assembly, stack: str) -> None:
    options = assembly.one(stack, TEMPLATE)["LaunchTemplateData"]["MetadataOptions"]
    assert options == {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1}


def test_gpu_nodes_have_the_nvidia_image_the_label_and_both_taints(assembly: Assembly) -> None:
    group = assembly.one("Gpu", NODEGROUP)
    assert group["AmiType"] == "AL2023_x86_64_NVIDIA"
    assert group["Labels"] == {names.POOL_LABEL: names.GPU_POOL}
    assert group["Taints"] == [
        {"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"},
        {"Key": "fsx.csi.aws.com/agent-not-ready", "Effect": "NO_EXECUTE"},
    ]


def test_system_nodes_have_a_plain_image_and_no_taint(assembly: Assembly) -> None:
    group = assembly.one("Cluster", NODEGROUP)
    assert group["AmiType"] == "AL2023_x86_64_STANDARD" and "Taints" not in group
    assert group["Labels"] == {names.POOL_LABEL: names.SYSTEM_POOL}
    assert group["ScalingConfig"] == {"MinSize": 2, "DesiredSize": 2, "MaxSize": 3} and len(group["Subnets"]) == 2


def test_gpu_nodes_are_in_one_subnet(assembly: Assembly) -> None:
    assert len(assembly.one("Gpu", NODEGROUP)["Subnets"]) == 1


def test_a_template_change_replaces_one_node_without_a_spare_one(assembly: Assembly) -> None:
    wanted = {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"}
    assert assembly.one("Gpu", NODEGROUP)["UpdateConfig"] == wanted


def test_repair_replaces_one_node_at_a_time_and_each_override_is_whole(assembly: Assembly) -> None:
    repair = assembly.one("Gpu", NODEGROUP)["NodeRepairConfig"]
    assert repair["Enabled"] is True and repair["MaxParallelNodesRepairedCount"] == 1
    assert "MaxParallelNodesRepairedPercentage" not in repair
    whole = {"NodeMonitoringCondition", "NodeUnhealthyReason", "MinRepairWaitTimeMins", "RepairAction"}
    assert repair["NodeRepairConfigOverrides"] and all(set(o) == whole for o in repair["NodeRepairConfigOverrides"])


def test_instances_volumes_and_interfaces_carry_the_tags(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "cost.owner=ada@example.com", "cost.expires_at=2026-12-31", "aws.apply_manifests=false")
    of_nodes = {"Project": "gpt2-g5x2", "Owner": "ada@example.com"}
    wanted = of_nodes | {"ExpiresAt": "2026-12-31"}
    for found in built.launch_data["TagSpecifications"]:
        # Not the day: EKS refuses a change of the template together with one of the group's own tags.
        assert {tag["Key"]: tag["Value"] for tag in found["Tags"]} == of_nodes
    kinds = [found["ResourceType"] for found in built.launch_data["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface"]
    fs = built.one("Storage", "AWS::FSx::FileSystem")
    assert {tag["Key"]: tag["Value"] for tag in fs["Tags"]} == wanted
    assert built.one("Gpu", NODEGROUP)["Tags"] == wanted
