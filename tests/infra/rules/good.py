"""The smallest templates that pass every rule: two p5 node slots, a file system, a plugin, a volume. Plain dicts."""

from __future__ import annotations

import json
from typing import Any

from infra.rules.assembly import MANIFEST, Assembly

Templates = dict[str, Any]
TAGS = [{"Key": "Owner", "Value": "me"}, {"Key": "Project", "Value": "demo"}]
CLUSTER_GROUP = {"Fn::ImportValue": "demo-cluster:ClusterGroup"}
SUBNET = {"Fn::ImportValue": "demo-network:GpuSubnet"}
EFA_GROUP = {"Fn::GetAtt": ["EfaGroup", "GroupId"]}
LUSTRE_GROUP = {"Fn::GetAtt": ["LustreGroup", "GroupId"]}
GPU_TAINT = {"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}
START_UP_TAINT = {"Key": "fsx.csi.aws.com/agent-not-ready", "Value": "true", "Effect": "NO_EXECUTE"}


def assembly(templates: Templates) -> Assembly:
    """The templates, in the order of stacks that the app has."""
    order = ("Network", "Cluster", "Storage", "Workload", "Gpu")
    return Assembly(
        templates=templates, stack_order={name: frozenset(order[:place]) for place, name in enumerate(order)}
    )


def good() -> Templates:
    """New dicts at each call, so that a test may break them."""
    return {"Network": _network(), "Cluster": _cluster(), "Storage": _storage(), "Workload": _workload(), "Gpu": _gpu()}


def _resource(kind: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Type": kind, "Properties": properties, **more}


def _export(name: str, value: Any) -> dict[str, Any]:
    return {"Value": value, "Export": {"Name": name}}


def _network() -> dict[str, Any]:
    return {
        "Resources": {
            "Vpc": _resource("AWS::EC2::VPC", {"CidrBlock": "10.0.0.0/16", "Tags": list(TAGS)}),
            "GpuSubnet": _resource("AWS::EC2::Subnet", {"VpcId": {"Ref": "Vpc"}}),
            "OtherSubnet": _resource("AWS::EC2::Subnet", {"VpcId": {"Ref": "Vpc"}}),
        },
        "Outputs": {
            "GpuSubnet": _export("demo-network:GpuSubnet", {"Ref": "GpuSubnet"}),
            "OtherSubnet": _export("demo-network:OtherSubnet", {"Ref": "OtherSubnet"}),
        },
    }


def _launch_template(**data: Any) -> dict[str, Any]:
    return _resource(
        "AWS::EC2::LaunchTemplate",
        {
            "LaunchTemplateData": {
                "MetadataOptions": {"HttpTokens": "required"},
                "BlockDeviceMappings": [{"Ebs": {"Encrypted": True, "VolumeType": "gp3", "VolumeSize": 100}}],
                "TagSpecifications": [{"ResourceType": kind, "Tags": list(TAGS)} for kind in ("instance", "volume")],
                **data,
            }
        },
    )


def _add_on(name: str, *after: str) -> dict[str, Any]:
    return _resource("AWS::EKS::Addon", {"AddonName": name}, DependsOn=list(after))


def _cluster() -> dict[str, Any]:
    policy = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":eks::aws:policy/AmazonEKSClusterAdminPolicy"]]}
    resources = {
        "Cluster": _resource(
            "AWS::EKS::Cluster",
            {
                "UpgradePolicy": {"SupportType": "STANDARD"},
                "AccessConfig": {"BootstrapClusterCreatorAdminPermissions": False},
                "ResourcesVpcConfig": {"EndpointPublicAccess": False},
                "Logging": {
                    "ClusterLogging": {"EnabledTypes": [{"Type": kind} for kind in ("api", "audit", "authenticator")]}
                },
                "Tags": list(TAGS),
            },
        ),
        "KubectlRole": _resource("AWS::IAM::Role", {}),
        "KubectlEntry": _resource(
            "AWS::EKS::AccessEntry",
            {
                "PrincipalArn": {"Fn::GetAtt": ["KubectlRole", "Arn"]},
                "AccessPolicies": [{"PolicyArn": policy}],
                "ClusterName": {"Ref": "Cluster"},
            },
        ),
        "PersonEntry": _resource(
            "AWS::EKS::AccessEntry",
            {
                "PrincipalArn": {"Ref": "AdminRoleArn"},
                "AccessPolicies": [{"PolicyArn": policy}],
                "ClusterName": {"Ref": "Cluster"},
            },
        ),
        "Agent": _add_on("eks-pod-identity-agent"),
        "Cni": _add_on("vpc-cni", "Agent"),
        "Proxy": _add_on("kube-proxy"),
        "Dns": _add_on("coredns", "SystemNodes"),
        "Csi": _add_on("aws-fsx-csi-driver", "SystemNodes"),
        "Monitor": _add_on("eks-node-monitoring-agent", "SystemNodes"),
        "SystemTemplate": _launch_template(InstanceType="m7i.xlarge"),
        "SystemNodes": _resource(
            "AWS::EKS::Nodegroup",
            {
                "AmiType": "AL2023_x86_64_STANDARD",
                "LaunchTemplate": {"Id": {"Ref": "SystemTemplate"}},
                "ScalingConfig": {"MinSize": 2, "DesiredSize": 2, "MaxSize": 3},
                "Labels": {"holdfast.dev/pool": "system"},
                "Tags": {tag["Key"]: tag["Value"] for tag in TAGS},
            },
            DependsOn=["Agent", "Cni", "Proxy"],
        ),
    }
    group = {"Fn::GetAtt": ["Cluster", "ClusterSecurityGroupId"]}
    return {"Resources": resources, "Outputs": {"Group": _export("demo-cluster:ClusterGroup", group)}}


def _ports(low: int, high: int, source: Any) -> dict[str, Any]:
    return {
        "GroupId": dict(LUSTRE_GROUP),
        "IpProtocol": "tcp",
        "FromPort": low,
        "ToPort": high,
        "SourceSecurityGroupId": dict(source),
    }


def _storage() -> dict[str, Any]:
    ports = {
        f"{name}{low}": _resource("AWS::EC2::SecurityGroupIngress", _ports(low, high, source))
        for name, source in (("Self", LUSTRE_GROUP), ("Nodes", CLUSTER_GROUP))
        for low, high in ((988, 988), (1018, 1023))
    }
    file_system = _resource(
        "AWS::FSx::FileSystem",
        {
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": 4800,
            "SubnetIds": [dict(SUBNET)],
            "SecurityGroupIds": [dict(LUSTRE_GROUP)],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 1000,
                "MetadataConfiguration": {"Mode": "AUTOMATIC"},
                "EfaEnabled": True,
            },
            "Tags": list(TAGS),
        },
        DependsOn=list(ports),
        DeletionPolicy="Retain",
        UpdateReplacePolicy="Retain",
    )
    return {
        "Resources": {
            "LustreGroup": _resource("AWS::EC2::SecurityGroup", {}),
            **ports,
            "FileSystem": file_system,
            "Copies": _resource(
                "AWS::S3::Bucket", {"Tags": list(TAGS)}, DeletionPolicy="Retain", UpdateReplacePolicy="Retain"
            ),
            "Association": _resource(
                "AWS::FSx::DataRepositoryAssociation", {"S3": {"AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}}}
            ),
        },
        "Outputs": {"Id": _export("demo-storage:FileSystem", {"Ref": "FileSystem"})},
    }


def plugin() -> dict[str, Any]:
    """A DaemonSet for GPU nodes."""
    pod = {
        "nodeSelector": {"holdfast.dev/pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {"kind": "DaemonSet", "metadata": {"name": "plugin"}, "spec": {"template": {"spec": pod}}}


def manifest(*objects: dict[str, Any]) -> dict[str, Any]:
    """What the CDK makes of Kubernetes objects."""
    return _resource(MANIFEST, {"Manifest": json.dumps(objects)})


def _workload() -> dict[str, Any]:
    before, after = json.dumps(
        [{"kind": "PersistentVolume", "metadata": {"name": "fsx"}, "spec": {"volumeHandle": "<HANDLE>"}}]
    ).split("<HANDLE>")
    volume = {"Fn::Join": ["", [before, {"Fn::ImportValue": "demo-storage:FileSystem"}, after]]}
    return {"Resources": {"Plugins": manifest(plugin()), "Volume": _resource(MANIFEST, {"Manifest": volume})}}


def interfaces() -> list[dict[str, Any]]:
    """The 32 interfaces of a p5.48xlarge: efa on the first card, efa-only on the others."""
    found: list[dict[str, Any]] = [
        {
            "NetworkCardIndex": 0,
            "DeviceIndex": 0,
            "InterfaceType": "efa",
            "Groups": [dict(CLUSTER_GROUP), dict(EFA_GROUP)],
        }
    ]
    found += [
        {"NetworkCardIndex": card, "DeviceIndex": 1, "InterfaceType": "efa-only", "Groups": [dict(EFA_GROUP)]}
        for card in range(1, 32)
    ]
    return found


def _gpu() -> dict[str, Any]:
    user_data = "#!/bin/bash\nwanted=2560\nsysctl --load\n"
    peer = {"GroupId": dict(EFA_GROUP), "IpProtocol": "-1"}
    return {
        "Resources": {
            "EfaGroup": _resource("AWS::EC2::SecurityGroup", {}),
            "EfaIn": _resource("AWS::EC2::SecurityGroupIngress", {**peer, "SourceSecurityGroupId": dict(EFA_GROUP)}),
            "EfaOut": _resource(
                "AWS::EC2::SecurityGroupEgress", {**peer, "DestinationSecurityGroupId": dict(EFA_GROUP)}
            ),
            "Template": _launch_template(
                InstanceType="p5.48xlarge",
                NetworkInterfaces=interfaces(),
                UserData={"Fn::Base64": user_data},
                Placement={"GroupName": {"Ref": "Place"}},
            ),
            "Place": _resource("AWS::EC2::PlacementGroup", {"Strategy": "cluster"}),
            "Nodes": _resource(
                "AWS::EKS::Nodegroup",
                {
                    "AmiType": "AL2023_x86_64_NVIDIA",
                    "CapacityType": "ON_DEMAND",
                    "LaunchTemplate": {"Id": {"Ref": "Template"}},
                    "Subnets": [dict(SUBNET)],
                    "ScalingConfig": {"MinSize": 0, "DesiredSize": 0, "MaxSize": 2},
                    "UpdateConfig": {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"},
                    "NodeRepairConfig": {
                        "Enabled": True,
                        "MaxParallelNodesRepairedCount": 1,
                        "NodeRepairConfigOverrides": [
                            {
                                "NodeMonitoringCondition": "AcceleratedHardwareReady",
                                "NodeUnhealthyReason": "DCGMError",
                                "MinRepairWaitTimeMins": 30,
                                "RepairAction": "NoAction",
                            }
                        ],
                    },
                    "Labels": {"holdfast.dev/pool": "gpu"},
                    "Taints": [dict(GPU_TAINT), dict(START_UP_TAINT)],
                    "Tags": {tag["Key"]: tag["Value"] for tag in TAGS},
                },
            ),
        }
    }
