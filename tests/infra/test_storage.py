"""The file system: what FSx refuses, what cannot be mounted, and what must not be lost (cases 23, 24 and 26)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import ConfigError, names
from tests.infra.assembly import FILE_SYSTEM, NODEGROUP, Assembly, Node
from tests.infra.conftest import Synth

INGRESS = "AWS::EC2::SecurityGroupIngress"
EGRESS = "AWS::EC2::SecurityGroupEgress"
BUCKET = "AWS::S3::Bucket"
ASSOCIATION = "AWS::FSx::DataRepositoryAssociation"
POLICIES = ("DeletionPolicy", "UpdateReplacePolicy")
KEPT = ("RetainExceptOnCreate", "Retain")
"""A deployment that fails while it makes them leaves nothing behind that costs money; otherwise they stay."""
EFA_FSX = (
    "storage.deployment_type=PERSISTENT_2",
    "storage.capacity_gib=4800",
    "storage.throughput_mbps_per_tib=1000",
    "storage.fsx.efa=true",
    "aws.apply_manifests=false",
)
COPIES = ("storage.fsx.s3_checkpoints=true", "aws.apply_manifests=false")


def rules(assembly: Assembly) -> dict[str, tuple[Node, Node, int, int]]:
    """Logical id -> (group, peer, first port, last port) of the TCP rules in the Storage stack."""
    found = {}
    for name, rule in assembly.all("Storage", INGRESS).items():
        p = rule["Properties"]
        if p["IpProtocol"] == "tcp":
            group, peer = (assembly.target("Storage", p[key]) for key in ("GroupId", "SourceSecurityGroupId"))
            found[name] = (group, peer, p["FromPort"], p["ToPort"])
    return found


def test_the_version_is_one_that_the_nodes_client_can_mount(assembly: Assembly) -> None:
    fs = assembly.one("Storage", FILE_SYSTEM)
    assert (fs["FileSystemType"], fs["FileSystemTypeVersion"]) == ("LUSTRE", "2.15")


def test_the_articles_file_system_is_scratch_of_1200_gib(p5: Assembly) -> None:
    fs = p5.one("Storage", FILE_SYSTEM)
    assert (fs["StorageCapacity"], fs["StorageType"]) == (1200, "SSD")
    assert fs["LustreConfiguration"] == {"DeploymentType": "SCRATCH_2", "DataCompressionType": "LZ4"}


def test_persistent_storage_has_throughput_and_metadata(synth: Synth) -> None:
    lustre = synth("llama3-8b-p5x8", "storage.fsx.metadata_iops=6000").one("Storage", FILE_SYSTEM)[
        "LustreConfiguration"
    ]
    assert lustre["DeploymentType"] == "PERSISTENT_2" and lustre["PerUnitStorageThroughput"] in (125, 250, 500, 1000)
    assert lustre["MetadataConfiguration"] == {"Mode": "USER_PROVISIONED", "Iops": 6000}
    assert "EfaEnabled" not in lustre


def test_it_is_in_the_subnet_and_zone_of_the_gpu_nodes(assembly: Assembly) -> None:
    (fs_subnet,) = assembly.one("Storage", FILE_SYSTEM)["SubnetIds"]
    (gpu_subnet,) = assembly.one("Gpu", NODEGROUP)["Subnets"]
    subnet = assembly.target("Storage", fs_subnet)
    assert subnet == assembly.target("Gpu", gpu_subnet)
    properties = assembly.templates[subnet.stack]["Resources"][subnet.logical_id]["Properties"]
    assert properties["AvailabilityZone"] == assembly.config.aws.gpu_zone


def test_another_gpu_zone_moves_both(synth: Synth) -> None:
    moved = synth("gpt2-g5x2", "aws.gpu_zone=us-west-2b", "aws.apply_manifests=false")
    test_it_is_in_the_subnet_and_zone_of_the_gpu_nodes(moved)
    nat = moved.one("Network", "AWS::EC2::NatGateway")["SubnetId"]["Ref"]
    assert moved.templates["Network"]["Resources"][nat]["Properties"]["AvailabilityZone"] == "us-west-2b"


def test_lustres_ports_are_open_to_itself_and_between_it_and_the_nodes(assembly: Assembly) -> None:
    (group,) = assembly.all("Storage", "AWS::EC2::SecurityGroup")
    own = Node("Storage", group)
    nodes = assembly.target("Gpu", assembly.launch_data["NetworkInterfaces"][0]["Groups"][0])
    wanted = {
        (*pair, *ports) for pair in ((own, own), (own, nodes), (nodes, own)) for ports in ((988, 988), (1018, 1023))
    }
    assert set(rules(assembly).values()) == wanted and len(rules(assembly)) == 6


def test_every_rule_is_there_before_the_file_system(assembly: Assembly) -> None:
    (fs,) = assembly.all("Storage", FILE_SYSTEM).values()
    assert set(rules(assembly)) <= set(fs["DependsOn"])
    (group,) = assembly.all("Storage", "AWS::EC2::SecurityGroup")
    assert fs["Properties"]["SecurityGroupIds"] == [{"Fn::GetAtt": [group, "GroupId"]}]


def test_no_group_carries_the_cluster_tag(assembly: Assembly) -> None:
    for template in assembly.templates.values():
        for resource in template["Resources"].values():
            tags = resource.get("Properties", {}).get("Tags", ())
            if resource["Type"] == "AWS::EC2::SecurityGroup":
                assert not [tag for tag in tags if tag["Key"].startswith("kubernetes.io/cluster/")]


def test_efa_between_nodes_and_file_system_puts_both_in_one_open_group(synth: Synth) -> None:
    built = synth("llama3-8b-p5x2", *EFA_FSX)
    assert built.one("Storage", FILE_SYSTEM)["LustreConfiguration"]["EfaEnabled"] is True
    (name,) = built.all("Storage", "AWS::EC2::SecurityGroup")
    own = {"Fn::GetAtt": [name, "GroupId"]}
    open_in = [r["Properties"] for r in built.all("Storage", INGRESS).values() if r["Properties"]["IpProtocol"] == "-1"]
    assert open_in == [{"GroupId": own, "SourceSecurityGroupId": own, "IpProtocol": "-1"}]
    assert built.one("Storage", EGRESS) == {"GroupId": own, "DestinationSecurityGroupId": own, "IpProtocol": "-1"}
    for nic in built.launch_data["NetworkInterfaces"]:
        assert Node("Storage", name) in [built.target("Gpu", group) for group in nic["Groups"]]


@pytest.mark.parametrize("kind", [FILE_SYSTEM, "AWS::EC2::SecurityGroup"])
def test_data_stays_unless_its_loss_was_agreed_to(synth: Synth, assembly: Assembly, kind: str) -> None:
    lossy = synth("gpt2-g5x2", "aws.allow_data_loss=true")
    for built, wanted in ((assembly, KEPT), (lossy, ("Delete", "Delete"))):
        (resource,) = built.all("Storage", kind).values()
        assert tuple(resource.get(policy, "Delete") for policy in POLICIES) == wanted


def test_what_stays_names_nothing_that_goes(p5: Assembly) -> None:
    """A retained group whose rules name the nodes' group would keep the cluster from being deleted."""
    (group,) = p5.all("Storage", "AWS::EC2::SecurityGroup")
    kept = {name for name, rule in p5.all("Storage", INGRESS).items() if rule.get("DeletionPolicy") == KEPT[0]}
    assert kept == {name for name, rule in rules(p5).items() if rule[:2] == (Node("Storage", group),) * 2}


def test_copies_in_s3_are_off_by_default(assembly: Assembly) -> None:
    assert not assembly.all("Storage", BUCKET) and not assembly.all("Storage", ASSOCIATION)


def test_deletions_are_never_copied_to_s3(synth: Synth) -> None:
    built = synth("gpt2-g5x2", *COPIES)
    association = built.one("Storage", ASSOCIATION)
    assert association["S3"] == {"AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}}
    assert association["FileSystemPath"] == "/runs", "run directories are <mount_path>/runs/<name>"
    assert str(association["DataRepositoryPath"]).count("/runs") == 1


def test_the_bucket_stays_is_private_and_encrypted(synth: Synth) -> None:
    built = synth("gpt2-g5x2", *COPIES)
    (bucket,) = built.all("Storage", BUCKET).values()
    assert tuple(bucket[policy] for policy in POLICIES) == KEPT
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["Properties"]["BucketEncryption"]


def test_training_pods_may_read_the_copies_and_no_more(synth: Synth) -> None:
    built = synth("gpt2-g5x2", *COPIES)
    association = built.one("Storage", "AWS::EKS::PodIdentityAssociation")
    assert association["ServiceAccount"] == names.SERVICE_ACCOUNT
    role = association["RoleArn"]["Fn::GetAtt"][0]
    policies = [p["Properties"] for p in built.all("Storage", "AWS::IAM::Policy").values()]
    (policy,) = [p for p in policies if p["Roles"] == [{"Ref": role}]]
    actions = {statement["Action"] for statement in policy["PolicyDocument"]["Statement"]}
    assert actions == {"s3:ListBucket", "s3:GetObject"}


def test_an_agreed_loss_empties_the_bucket_too(synth: Synth) -> None:
    built = synth("gpt2-g5x2", *COPIES, "aws.allow_data_loss=true")
    (bucket,) = built.all("Storage", BUCKET).values()
    assert bucket["DeletionPolicy"] == "Delete" and built.all("Storage", "Custom::S3AutoDeleteObjects")


@pytest.mark.parametrize(
    ("capacity", "throughput"),
    [(1300, 125), (3600, 250), (1200, 100), (1200, None), (-1, 125), ("abc", 125)],
)
def test_sizes_that_fsx_refuses_are_refused_here(synth: Synth, capacity: Any, throughput: Any) -> None:
    settings = ["storage.deployment_type=PERSISTENT_2", f"storage.capacity_gib={capacity}"]
    settings += [f"storage.throughput_mbps_per_tib={throughput}"] if throughput else []
    with pytest.raises(ConfigError, match=r"storage\.(capacity_gib|throughput_mbps_per_tib) = "):
        synth("gpt2-g5x2", *settings)


@pytest.mark.parametrize(("capacity", "throughput"), [(1200, 125), (4800, 1000)])
def test_sizes_that_fsx_takes_reach_the_template(synth: Synth, capacity: int, throughput: int) -> None:
    settings = [f"storage.capacity_gib={capacity}", f"storage.throughput_mbps_per_tib={throughput}"]
    built = synth("gpt2-g5x2", "storage.deployment_type=PERSISTENT_2", *settings, "aws.apply_manifests=false")
    fs = built.one("Storage", FILE_SYSTEM)
    assert fs["StorageCapacity"] == capacity
    assert fs["LustreConfiguration"]["PerUnitStorageThroughput"] == throughput


def test_charts_get_the_file_systems_own_outputs(p5: Assembly) -> None:
    (name,) = p5.all("Storage", FILE_SYSTEM)
    outputs = {key: output["Value"] for key, output in p5.templates["Storage"]["Outputs"].items()}
    assert outputs[names.OUTPUT_FILE_SYSTEM_ID] == {"Ref": name}
    assert outputs[names.OUTPUT_FILE_SYSTEM_DNS] == {"Fn::GetAtt": [name, "DNSName"]}
    assert outputs[names.OUTPUT_FILE_SYSTEM_MOUNT] == {"Fn::GetAtt": [name, "LustreMountName"]}
