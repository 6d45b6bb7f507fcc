"""Ways to break the good templates, each for one rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.infra.rules import good as parts
from tests.infra.rules.good import Templates


def at(templates: Templates, stack: str, logical_id: str, *keys: Any) -> Any:
    """A part of a resource's properties, to be changed in place."""
    target = templates[stack]["Resources"][logical_id]["Properties"]
    for key in keys:
        target = target[key]
    return target


def data(templates: Templates) -> dict[str, Any]:
    """LaunchTemplateData of the GPU nodes."""
    found: dict[str, Any] = at(templates, "Gpu", "Template", "LaunchTemplateData")
    return found


def group(templates: Templates) -> dict[str, Any]:
    """Properties of the GPU node group."""
    found: dict[str, Any] = at(templates, "Gpu", "Nodes")
    return found


def lustre(templates: Templates) -> dict[str, Any]:
    """LustreConfiguration."""
    found: dict[str, Any] = at(templates, "Storage", "FileSystem", "LustreConfiguration")
    return found


def nic(templates: Templates, number: int) -> dict[str, Any]:
    found: dict[str, Any] = data(templates)["NetworkInterfaces"][number]
    return found


def capacity_block(templates: Templates) -> None:
    """A complete Capacity Block, without the placement group."""
    group(templates)["CapacityType"] = "CAPACITY_BLOCK"
    data(templates)["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    target = {"CapacityReservationId": "cr-0123456789abcdef0"}
    data(templates)["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    data(templates).pop("Placement", None)


def without_market(t: Templates) -> None:
    capacity_block(t)
    del data(t)["InstanceMarketOptions"]


def without_reservation(t: Templates) -> None:
    capacity_block(t)
    del data(t)["CapacityReservationSpecification"]


def without_capacity_type(t: Templates) -> None:
    capacity_block(t)
    group(t)["CapacityType"] = "ON_DEMAND"


def without_instance_type(t: Templates) -> None:
    capacity_block(t)
    del data(t)["InstanceType"]
    group(t)["InstanceTypes"] = ["p5.48xlarge"]


def block_in_a_placement_group(t: Templates) -> None:
    capacity_block(t)
    data(t)["Placement"] = {"GroupName": {"Ref": "Place"}}


def second_tagged_group(t: Templates) -> None:
    at(t, "Gpu", "EfaGroup")["Tags"] = [{"Key": "kubernetes.io/cluster/demo", "Value": "owned"}]


def two_slots(t: Templates) -> None:
    nic(t, 31)["NetworkCardIndex"] = 30


def twelve_interfaces_counted_up(t: Templates) -> None:
    for number, interface in enumerate(data(t)["NetworkInterfaces"]):
        interface["DeviceIndex"] = number


def drop(stack: str, logical_id: str) -> Callable[[Templates], None]:
    def change(templates: Templates) -> None:
        del templates[stack]["Resources"][logical_id]

    return change


def put(stack: str, logical_id: str, *path: Any) -> Callable[[Templates], None]:
    """Set what stands at path[:-1] to path[-1]."""
    *keys, last, value = path

    def change(templates: Templates) -> None:
        at(templates, stack, logical_id, *keys)[last] = value

    return change


def lose(stack: str, logical_id: str, *path: Any) -> Callable[[Templates], None]:
    """Remove what stands at path."""
    *keys, last = path

    def change(templates: Templates) -> None:
        del at(templates, stack, logical_id, *keys)[last]

    return change


def depends(stack: str, logical_id: str, *names: str) -> Callable[[Templates], None]:
    def change(templates: Templates) -> None:
        templates[stack]["Resources"][logical_id]["DependsOn"] = list(names)

    return change


def body_without(stack: str, logical_id: str, key: str) -> Callable[[Templates], None]:
    def change(templates: Templates) -> None:
        del templates[stack]["Resources"][logical_id][key]

    return change


def extra_manifest(*objects: dict[str, Any], stack: str = "Workload") -> Callable[[Templates], None]:
    def change(templates: Templates) -> None:
        templates[stack]["Resources"]["Extra"] = parts.manifest(*objects)

    return change


def blind_plugin(t: Templates) -> None:
    plugin = parts.plugin()
    plugin["spec"]["template"]["spec"]["tolerations"] = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    extra_manifest(plugin)(t)


def efa_on_scratch(t: Templates) -> None:
    lustre(t).clear()
    lustre(t).update({"DeploymentType": "SCRATCH_2", "EfaEnabled": True})


class Broken(NamedTuple):
    """What one rule is to catch, and how the good templates are broken for it."""

    rule: str
    change: Callable[[Templates], None]
    says: str


DATA = ("Gpu", "Template", "LaunchTemplateData")
EXPIRING = [
    {"ResourceType": kind, "Tags": [*parts.TAGS, {"Key": "ExpiresAt", "Value": "2027-01-31"}]}
    for kind in ("instance", "volume")
]
NODES = ("Gpu", "Nodes")
FILES = ("Storage", "FileSystem")
LUSTRE = (*FILES, "LustreConfiguration")
CLUSTER = ("Cluster", "Cluster")
OVERRIDE = (*NODES, "NodeRepairConfig", "NodeRepairConfigOverrides", 0)
EXPORTS = ("Storage", "Association", "S3", "AutoExportPolicy", "Events")
POOLS = {"MaxParallelNodesRepairedCount": 1, "MaxParallelNodesRepairedPercentage": 10}
BROKEN = [
    Broken("HF001", two_slots, "2 interfaces have network card 30, device 1"),
    Broken("HF002", put(*DATA, "NetworkInterfaces", 0, "InterfaceType", "efa-only"), "primary interface is efa-only"),
    Broken("HF002", put(*DATA, "NetworkInterfaces", 0, "DeviceIndex", 1), "no interface is on network card 0"),
    Broken("HF003", lose(*DATA, "NetworkInterfaces", 31), "31 EFA interfaces on p5.48xlarge"),
    Broken("HF003", put(*DATA, "NetworkInterfaces", 5, "InterfaceType", "interface"), "31 EFA interfaces"),
    Broken("HF004", twelve_interfaces_counted_up, "network card 2, device 2"),
    Broken("HF004", put(*DATA, "NetworkInterfaces", 31, "NetworkCardIndex", 32), "network card 32, device 1"),
    Broken("HF005", put(*DATA, "SecurityGroupIds", ["sg-1"]), "both at the template and at its interfaces"),
    Broken("HF005", lose(*DATA, "NetworkInterfaces", 7, "Groups"), "1 interfaces, the first on card 7"),
    Broken("HF006", put(*DATA, "NetworkInterfaces", 0, "SubnetId", "subnet-1"), "names a SubnetId"),
    Broken("HF007", put(*DATA, "NetworkInterfaces", 0, "AssociatePublicIpAddress", False), "AssociatePublicIpAddress"),
    Broken("HF008", put(*DATA, "NetworkInterfaces", 0, "Groups", [dict(parts.EFA_GROUP)]), "not in the cluster"),
    Broken("HF009", drop("Gpu", "EfaIn"), "lets all traffic in from itself"),
    Broken("HF009", put("Gpu", "EfaIn", "IpProtocol", "tcp"), "lets all traffic in from itself"),
    Broken("HF010", drop("Gpu", "EfaOut"), "lets all traffic out to itself"),
    Broken("HF010", put("Gpu", "EfaOut", "DestinationSecurityGroupId", dict(parts.CLUSTER_GROUP)), "out to itself"),
    Broken("HF011", second_tagged_group, "a second security group"),
    Broken("HF012", put(*DATA, "IamInstanceProfile", {"Arn": "arn"}), "says IamInstanceProfile"),
    Broken("HF012", put(*DATA, "InstanceMarketOptions", {"MarketType": "spot"}), "spot"),
    Broken("HF013", put(*DATA, "MetadataOptions", "HttpTokens", "optional"), "HttpTokens is optional"),
    Broken("HF013", lose("Cluster", "SystemTemplate", "LaunchTemplateData", "MetadataOptions"), "is not set"),
    Broken("HF014", put(*DATA, "BlockDeviceMappings", 0, "Ebs", "Encrypted", False), "no encrypted gp3"),
    Broken("HF014", lose(*DATA, "BlockDeviceMappings"), "no encrypted gp3"),
    Broken("HF015", put(*NODES, "DiskSize", 100), "DiskSize stands in the node group"),
    Broken("HF015", put(*NODES, "InstanceTypes", ["p5.48xlarge"]), "InstanceTypes stands in the node group"),
    Broken("HF015", put(*NODES, "RemoteAccess", {}), "RemoteAccess stands in the node group"),
    Broken("HF015", put(*DATA, "ImageId", "ami-1"), "AmiType stands in the node group"),
    Broken("HF016", without_market, "without InstanceMarketOptions.MarketType"),
    Broken("HF016", without_reservation, "without CapacityReservationTarget"),
    Broken("HF016", without_capacity_type, "without CapacityType"),
    Broken("HF016", without_instance_type, "without InstanceType"),
    Broken("HF017", block_in_a_placement_group, "in a placement group"),
    Broken("HF018", put(*DATA, "UserData", {"Fn::Base64": "wanted=2000\n"}), "reserves 2000 huge pages"),
    Broken("HF018", lose(*DATA, "UserData"), "reserves 0 huge pages"),
    Broken("HF019", put(*NODES, "Subnets", [dict(parts.SUBNET), "subnet-2"]), "has 2 subnets"),
    Broken("HF020", put(*NODES, "AmiType", "AL2023_X86_64_NVIDIA"), "AmiType is AL2023_X86_64_NVIDIA"),
    Broken("HF020", put(*NODES, "AmiType", "AL2_x86_64"), "AmiType is AL2_x86_64"),
    Broken("HF021", put(*NODES, "ScalingConfig", "DesiredSize", 3), "does not hold"),
    Broken("HF021", put(*NODES, "ScalingConfig", "MaxSize", 0), "MaxSize is 0"),
    Broken("HF021", lose(*NODES, "ScalingConfig", "MinSize"), "are None, 0, 2"),
    Broken("HF022", put(*NODES, "NodeRepairConfig", POOLS), "are both given"),
    Broken("HF022", lose(*OVERRIDE, "RepairAction"), "lacks RepairAction"),
    Broken("HF023", put(*NODES, "UpdateConfig", "UpdateStrategy", "DEFAULT"), "UpdateStrategy is DEFAULT"),
    Broken("HF023", lose(*NODES, "UpdateConfig"), "UpdateStrategy is not set"),
    Broken("HF024", put(*NODES, "Taints", [dict(parts.START_UP_TAINT)]), "no taint nvidia.com/gpu"),
    Broken("HF024", put(*NODES, "Taints", 1, "Effect", "NoExecute"), "no start-up taint"),
    Broken("HF024", put(*NODES, "Labels", {}), "no label"),
    Broken("HF024", put("Cluster", "SystemNodes", "Taints", [dict(parts.GPU_TAINT)]), "without GPUs has the taint"),
    Broken("HF025", lose(*FILES, "FileSystemTypeVersion"), "which means 2.10"),
    Broken("HF025", put(*FILES, "FileSystemTypeVersion", "2.12"), "is 2.12"),
    Broken("HF026", put(*FILES, "StorageCapacity", "4800"), "StorageCapacity is 4800"),
    Broken("HF027", put(*LUSTRE, "PerUnitStorageThroughput", 200), "PERSISTENT_2 with PerUnitStorageThroughput 200"),
    Broken("HF027", lose(*LUSTRE, "PerUnitStorageThroughput"), "PerUnitStorageThroughput not set"),
    Broken("HF027", put(*FILES, "LustreConfiguration", {}), "which means SCRATCH_1"),
    Broken("HF028", put(*FILES, "StorageCapacity", 2400), "EFA with 1000 MB/s per TiB and 2400 GiB"),
    Broken("HF028", put(*LUSTRE, "PerUnitStorageThroughput", 250), "EFA with 250"),
    Broken("HF028", lose(*LUSTRE, "MetadataConfiguration"), "without a MetadataConfiguration"),
    Broken("HF028", efa_on_scratch, "not PERSISTENT_2"),
    Broken("HF029", put("Storage", "Self988", "FromPort", 989), "TCP 988 from itself"),
    Broken("HF029", put("Storage", "Nodes1018", "ToPort", 1020), "TCP 1018-1023 from the nodes"),
    Broken("HF029", put("Storage", "Nodes988", "SourceSecurityGroupId", dict(parts.LUSTRE_GROUP)), "from the nodes"),
    Broken("HF030", depends("Storage", "FileSystem", "Self988", "Self1018", "Nodes988"), "does not wait for the rule"),
    Broken("HF031", put(*FILES, "SubnetIds", [{"Fn::ImportValue": "demo-network:OtherSubnet"}]), "another subnet"),
    Broken("HF032", body_without(*FILES, "DeletionPolicy"), "no DeletionPolicy"),
    Broken("HF032", body_without("Storage", "Copies", "UpdateReplacePolicy"), "no UpdateReplacePolicy"),
    Broken("HF033", put(*EXPORTS, 1, "DELETED"), "exports deletions"),
    Broken("HF034", put(*CLUSTER, "UpgradePolicy", "SupportType", "EXTENDED"), "not STANDARD"),
    Broken("HF034", lose(*CLUSTER, "UpgradePolicy"), "not STANDARD"),
    Broken("HF035", put(*CLUSTER, "ResourcesVpcConfig", {"EndpointPublicAccess": True}), "whole internet"),
    Broken("HF035", put(*CLUSTER, "ResourcesVpcConfig", {"PublicAccessCidrs": ["0.0.0.0/0"]}), "whole internet"),
    Broken("HF036", lose(*CLUSTER, "Logging", "ClusterLogging", "EnabledTypes", 1), "lack audit"),
    Broken("HF037", drop("Cluster", "PersonEntry"), "no access entry"),
    Broken("HF037", put("Cluster", "PersonEntry", "PrincipalArn", {"Fn::GetAtt": ["KubectlRole", "Arn"]}), "outside"),
    Broken("HF038", depends("Cluster", "SystemNodes", "Agent", "Proxy"), "wait for the add-on vpc-cni"),
    Broken("HF038", depends("Cluster", "Dns"), "wait for Cluster/SystemNodes"),
    Broken("HF039", lose(*FILES, "Tags"), "no tag Owner, Project"),
    Broken("HF039", lose("Cluster", "SystemNodes", "Tags", "Project"), "no tag Project"),
    Broken("HF039", lose(*DATA, "TagSpecifications", 1), "no tag Owner, Project"),
    Broken("HF039", put("Network", "Vpc", "Tags", [*parts.TAGS, {"Key": "ExpiresAt"}]), "no tag ExpiresAt"),
    Broken("HF039", put(*DATA, "TagSpecifications", EXPIRING), "gives the tag ExpiresAt to instances"),
    Broken("HF040", extra_manifest({"kind": "ConfigMap", "data": {"text": "x" * 250_001}}), "bytes"),
    Broken("HF041", extra_manifest({"kind": "ConfigMap", "data": {"id": "${Token[TOKEN.18]}"}}), "${Token[TOKEN.18]}"),
    Broken("HF041", extra_manifest({"kind": "ConfigMap", "data": {"size": -1.8881545897087503e289}}), "-1.88"),
    Broken("HF041", put(*NODES, "ScalingConfig", "Odd", -1.8881545897087503e289), "-1.88"),
    Broken("HF042", blind_plugin, "plugin does not tolerate nvidia.com/gpu"),
    Broken("HF043", extra_manifest({"kind": "ConfigMap"}, stack="Cluster"), "does not depend on"),
    Broken("HF044", extra_manifest({"kind": "JobSet", "metadata": {"name": "run"}}), "JobSet run"),
]
