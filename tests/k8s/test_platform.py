"""What a job needs of the platform to start: storage, plugins, taints, namespace, network. One result on both paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.config import ConfigError, load_profile, names, profile_names
from k8s.placement import GPU_POOL_TAINTS, START_UP_TAINT, tolerates
from tests.k8s.conftest import OUTPUTS
from tests.k8s.job_view import Job, Object

P5, G5 = "llama3-8b-p5x2", "gpt2-g5x2"
ON_AWS = [profile for profile in profile_names() if load_profile(profile).instance.ec2]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def pod_of(daemon_set: Object) -> Object:
    spec: Object = daemon_set["spec"]["template"]["spec"]
    return spec


def platform_of(profile: str, *overrides: str, **arguments: Any) -> dict[str, list[Object]]:
    from k8s.platform import manifests, platform_charts

    return manifests(platform_charts(load_profile(profile, overrides), **{"file_system": None, **arguments}))


# case-25: the claim binds to our volume and to no other


@pytest.mark.parametrize("profile", ON_AWS)
def test_the_claim_binds_to_the_static_volume_of_the_file_system(synthesized: dict[str, Any], profile: str) -> None:
    (volume,) = of_kind(synthesized[profile].platform_objects, "PersistentVolume")
    (claim,) = of_kind(synthesized[profile].platform_objects, "PersistentVolumeClaim")
    size = "1200Gi"  # whatever the file system's: a claim that grew with it would be refused
    assert volume["metadata"] == {"name": "holdfast-fsx", "labels": {"app.kubernetes.io/part-of": "holdfast"}}
    assert volume["spec"] == {
        "capacity": {"storage": size},
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "mountOptions": ["flock", "noatime"],
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "holdfast", "name": "fsx"},
        "csi": {
            "driver": "fsx.csi.aws.com",
            "volumeHandle": OUTPUTS["FileSystemId"],
            "volumeAttributes": {
                "dnsname": OUTPUTS["FileSystemDnsName"],
                "mountname": OUTPUTS["FileSystemMountName"],
            },
        },
    }
    assert (claim["metadata"]["namespace"], claim["metadata"]["name"]) == ("holdfast", "fsx")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "holdfast-fsx",
        "resources": {"requests": {"storage": size}},
    }


def test_a_storage_class_comes_only_if_it_is_asked_for_and_never_serves_the_run() -> None:
    from k8s.platform import DynamicStorage

    where = DynamicStorage(subnet_id="subnet-1", security_group_id="sg-1")
    change = ("storage.deployment_type=PERSISTENT_2", "storage.throughput_mbps_per_tib=250")
    ((made,),) = [platform_of(P5, *change, dynamic_storage=where)["storage"]]
    assert made["provisioner"] == "fsx.csi.aws.com"
    assert made["reclaimPolicy"] == "Retain"
    assert made["parameters"] == {
        "subnetId": "subnet-1",
        "securityGroupIds": "sg-1",
        "deploymentType": "PERSISTENT_2",
        "fileSystemTypeVersion": "2.15",
        "storageType": "SSD",
        "dataCompressionType": "LZ4",
        "perUnitStorageThroughput": "250",
    }
    assert "annotations" not in made["metadata"]  # not the default class
    assert "storage" not in platform_of(P5)


# case-28: the same objects on both paths


def resolved(value: Any, values: dict[str, str]) -> Any:
    """A template's intrinsic functions, with the attributes of the file system in their place."""
    if isinstance(value, dict):
        if "Fn::Join" in value:
            separator, parts = value["Fn::Join"]
            return separator.join(resolved(part, values) for part in parts)
        if "Fn::GetAtt" in value:
            return values[value["Fn::GetAtt"][1]]
        return values["Ref"]
    return value


@pytest.mark.parametrize("profile", [P5, G5])
def test_charts_with_cdk_tokens_resolve_to_the_objects_that_cdk8s_writes(
    synthesized: dict[str, Any], profile: str
) -> None:
    import aws_cdk
    from aws_cdk import aws_fsx

    from k8s.platform import FileSystem

    app = aws_cdk.App(analytics_reporting=False, builtin_cloud_formation_validation=False)
    stack = aws_cdk.Stack(app, "stack")
    fs = aws_fsx.CfnFileSystem(stack, "fs", file_system_type="LUSTRE", subnet_ids=["subnet-1"])
    file_system = FileSystem(id=fs.ref, dns_name=fs.attr_dns_name, mount_name=fs.attr_lustre_mount_name)
    made = platform_of(profile, file_system=file_system)
    assert list(made) == ["priority", "space", "plugins", "storage"]
    for name, objects in made.items():
        # What eks.KubernetesManifest does with its manifests.
        aws_cdk.CfnResource(stack, name, type="Custom::T", properties={"Manifest": stack.to_json_string(objects)})
    template = app.synth().get_stack_by_name("stack").template
    values = {
        "Ref": OUTPUTS["FileSystemId"],
        "DNSName": OUTPUTS["FileSystemDnsName"],
        "LustreMountName": OUTPUTS["FileSystemMountName"],
    }
    found = [
        json.loads(resolved(template["Resources"][name]["Properties"]["Manifest"], values)) for name in made
    ]  # fmt: skip
    inside = sorted((item for objects in found for item in objects), key=json.dumps)
    stand_alone = sorted(synthesized[profile].platform_objects, key=json.dumps)
    assert inside == stand_alone
    assert "${Token[" not in json.dumps(inside)


def test_rendering_twice_gives_identical_objects() -> None:
    assert json.dumps(platform_of(P5)) == json.dumps(platform_of(P5))


# case-31: device plugins and taints


@pytest.mark.parametrize("profile", ON_AWS)
def test_plugins_tolerate_every_taint_of_gpu_nodes_and_select_only_these(
    synthesized: dict[str, Any], profile: str
) -> None:
    plugins = of_kind(synthesized[profile].platform_objects, "DaemonSet")
    wanted = ["nvidia-device-plugin"]
    if load_profile(profile).instance.efa:
        wanted.insert(0, "efa-device-plugin")
    assert sorted(item["metadata"]["name"] for item in plugins) == wanted
    for pod in map(pod_of, plugins):
        assert [taint for taint in GPU_POOL_TAINTS if not tolerates(pod["tolerations"], taint)] == []
        assert pod["nodeSelector"] == {"holdfast.dev/pool": "gpu"}
        assert pod["priorityClassName"] == "system-node-critical"
    assert {item["metadata"]["namespace"] for item in plugins} == {"kube-system"}


@pytest.mark.parametrize("profile", ON_AWS)
def test_workers_tolerate_the_gpu_taint_and_wait_for_the_storage_driver(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    workers, control = job.pod(names.WORKERS), job.pod(names.CONTROL)
    left = [taint for taint in GPU_POOL_TAINTS if not tolerates(workers["tolerations"], taint)]
    assert left == [START_UP_TAINT]  # the FSx CSI driver takes it away
    assert workers["nodeSelector"] == {
        "holdfast.dev/pool": "gpu",
        "node.kubernetes.io/instance-type": job.config.cluster.instance_type,
    }
    assert control["nodeSelector"] == {"holdfast.dev/pool": "system"}
    assert not any(tolerates(control["tolerations"], taint) for taint in GPU_POOL_TAINTS)


@pytest.mark.parametrize("profile", ["cpu-demo", "cpu-test", "gpu-local"])
def test_without_ec2_there_are_no_plugins_no_storage_and_no_node_selectors(
    synthesized: dict[str, Any], jobs: dict[str, Job], profile: str
) -> None:
    kinds = {item["kind"] for item in synthesized[profile].platform_objects}
    assert kinds == {"Namespace", "NetworkPolicy", "PriorityClass", "ServiceAccount"}
    assert "nodeSelector" not in jobs[profile].pod(names.WORKERS)
    assert "nodeSelector" not in jobs[profile].pod(names.CONTROL)


def test_the_nvidia_plugin_has_no_privileges_and_the_efa_plugin_has_those_of_its_vendor(
    synthesized: dict[str, Any],
) -> None:
    efa, nvidia = sorted(of_kind(synthesized[P5].platform_objects, "DaemonSet"), key=lambda i: str(i["metadata"]))
    (container,) = pod_of(nvidia)["containers"]
    assert container["image"] == "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "hostNetwork" not in pod_of(nvidia)
    (container,) = pod_of(efa)["containers"]
    host = "602401143452.dkr.ecr.us-west-2.amazonaws.com"
    assert container["image"] == f"{host}/eks/aws-efa-k8s-device-plugin:v0.5.20"
    assert container["securityContext"] == {"privileged": True, "runAsUser": 0}
    assert pod_of(efa)["hostNetwork"] is True
    paths = {volume["hostPath"]["path"] for volume in pod_of(efa)["volumes"]}
    assert paths == {"/var/lib/kubelet/device-plugins", "/dev/infiniband/", "/opt/aws/neuron/"}


def test_the_registry_of_the_efa_plugin_follows_the_region_or_is_given() -> None:
    zones = ("aws.region=eu-south-1", "aws.zones=[eu-south-1a, eu-south-1b]", "aws.gpu_zone=eu-south-1a")
    made = json.dumps(platform_of(P5, *zones)["plugins"])
    assert "590381155156.dkr.ecr.eu-south-1.amazonaws.com/eks/" in made
    given = json.dumps(platform_of(P5, *zones, image_registry="mirror.example")["plugins"])
    assert "mirror.example/eks/aws-efa-k8s-device-plugin:v0.5.20" in given


def test_a_region_whose_registry_is_unknown_is_refused_with_its_key() -> None:
    zones = ("aws.region=us-south-9", "aws.zones=[us-south-9a, us-south-9b]", "aws.gpu_zone=us-south-9a")
    with pytest.raises(ConfigError, match=r"aws\.region = 'us-south-9'.*us-west-2"):
        platform_of(P5, *zones)
    assert "plugins" in platform_of(G5, *zones)  # no EFA, no such image


# namespace, identity, network


@pytest.mark.parametrize("profile", profile_names())
def test_the_namespace_states_the_least_level_that_its_pods_need_and_why(
    synthesized: dict[str, Any], profile: str
) -> None:
    (namespace,) = of_kind(synthesized[profile].platform_objects, "Namespace")
    needy = load_profile(profile).instance.efa > 0
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    reason = namespace["metadata"]["annotations"]["holdfast/pod-security-reason"]
    assert level == ("privileged" if needy else "baseline")
    assert ("IPC_LOCK" in reason) == ("hostPath" in reason) == needy


@pytest.mark.parametrize("profile", profile_names())
def test_pods_run_as_the_account_that_the_platform_makes(
    synthesized: dict[str, Any], jobs: dict[str, Job], profile: str
) -> None:
    (account,) = of_kind(synthesized[profile].platform_objects, "ServiceAccount")
    assert (account["metadata"]["name"], account["metadata"]["namespace"]) == ("trainer", "holdfast")
    assert "annotations" not in account["metadata"]
    for role in (names.WORKERS, names.CONTROL):
        assert jobs[profile].pod(role)["serviceAccountName"] == "trainer"
        assert jobs[profile].pod(role)["priorityClassName"] == "holdfast"


@pytest.mark.parametrize("profile", profile_names())
def test_a_job_is_reached_by_its_own_pods_and_by_scrapers_only(synthesized: dict[str, Any], profile: str) -> None:
    (closed,) = of_kind(synthesized[profile].platform_objects, "NetworkPolicy")
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    (policy,) = of_kind(synthesized[profile].job_objects, "NetworkPolicy")
    (jobset,) = of_kind(synthesized[profile].job_objects, "JobSet")
    own = {"podSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"]}}}
    assert policy["spec"]["podSelector"] == own["podSelector"]
    assert policy["spec"]["ingress"][0] == {"from": [own]}
    # What else there is lets a scraper in to the metrics: test_monitoring.py.
    assert all(rule["ports"] for rule in policy["spec"]["ingress"][1:])
    open_ports = [
        (port["protocol"], port["port"], port.get("endPort"))
        for rule in policy["spec"]["egress"]
        for port in rule.get("ports", ())
    ]
    everywhere = [("UDP", 53, None), ("TCP", 53, None), ("TCP", 443, None)]
    on_aws = [("TCP", 988, None), ("TCP", 1018, 1023), ("TCP", 80, None)]
    assert open_ports == everywhere + (on_aws if profile in ON_AWS else [])
    assert {"to": [own]} in policy["spec"]["egress"]


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_a_namespace_that_is_not_ours_is_refused_for_cdk_too(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.namespace = '{name}'.*a name of your own"):
        platform_of(G5, f"cluster.namespace={name}")
