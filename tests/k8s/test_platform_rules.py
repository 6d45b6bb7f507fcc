"""The rules of what a job stands on: each finds the fault that it is there for. test_rules.py has the profiles."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from k8s import platform_rules, rules, storage_rules
from tests.k8s.broken import Break, assert_found

Object = dict[str, Any]
SYSTEM, GPU = {"holdfast.dev/pool": "system"}, {"holdfast.dev/pool": "gpu"}
P5, G5, CPU = "llama3-8b-p5x2", "gpt2-g5x2", "cpu-demo"


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    return next(item for item in objects if item["kind"] == kind and name in item["metadata"]["name"])


def volume(objects: list[Object]) -> Object:
    spec: Object = one(objects, "PersistentVolume")["spec"]
    return spec


def claim(objects: list[Object]) -> Object:
    spec: Object = one(objects, "PersistentVolumeClaim")["spec"]
    return spec


def attributes(objects: list[Object]) -> Object:
    found: Object = volume(objects)["csi"]["volumeAttributes"]
    return found


def plugin(objects: list[Object], name: str) -> Object:
    spec: Object = one(objects, "DaemonSet", name)["spec"]["template"]["spec"]
    return spec


def tolerations(objects: list[Object], name: str) -> list[Object]:
    found: list[Object] = plugin(objects, name)["tolerations"]
    return found


def pod(objects: list[Object], role: int = 1) -> Object:
    jobs = one(objects, "JobSet")["spec"]["replicatedJobs"]
    spec: Object = jobs[role]["template"]["spec"]["template"]["spec"]
    return spec


def policy(objects: list[Object]) -> Object:
    name = one(objects, "JobSet")["metadata"]["name"]
    spec: Object = one(objects, "NetworkPolicy", name)["spec"]
    return spec


def level(objects: list[Object], value: str) -> None:
    one(objects, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = value


def image(objects: list[Object], name: str) -> None:
    for role in (0, 1):
        pod(objects, role)["containers"][0]["image"] = name


BREAKS: list[tuple[str, str, Break]] = [
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: tolerations(o, "efa").pop(0)),
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: tolerations(o, "nvidia").pop()),
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: tolerations(o, "efa")[0].update(effect="NoExecute")),
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: tolerations(o, "efa")[1].update(tolerationSeconds=9)),
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: pod(o)["tolerations"].pop()),
    ("tainted_nodes_take_what_belongs_there", P5, lambda o: pod(o)["tolerations"].append({"operator": "Exists"})),
    ("plugins_stay_on_gpu_nodes", P5, lambda o: plugin(o, "efa").pop("nodeSelector")),
    ("plugins_stay_on_gpu_nodes", G5, lambda o: plugin(o, "nvidia")["nodeSelector"].update(SYSTEM)),
    ("pods_select_labels_that_nodes_have", P5, lambda o: pod(o)["nodeSelector"].update(accelerator="h100")),
    ("pods_select_labels_that_nodes_have", P5, lambda o: pod(o)["nodeSelector"].pop("holdfast.dev/pool")),
    ("pods_select_labels_that_nodes_have", P5, lambda o: pod(o, 0)["nodeSelector"].update(GPU)),
    ("pods_select_labels_that_nodes_have", P5, lambda o: pod(o)["nodeSelector"].update(
        {"node.kubernetes.io/instance-type": "p5e.48xlarge"}
    )),
    ("the_namespace_is_our_own", CPU, lambda o: one(o, "Namespace")["metadata"].update(name="default")),
    ("the_namespace_allows_its_pods_and_no_more", P5, lambda o: level(o, "baseline")),
    ("the_namespace_allows_its_pods_and_no_more", G5, lambda o: level(o, "privileged")),
    ("the_namespace_allows_its_pods_and_no_more", G5, lambda o: level(o, "restricted")),
    ("the_namespace_allows_its_pods_and_no_more", G5, lambda o: one(o, "Namespace")["metadata"].pop("labels")),
    ("the_namespace_allows_its_pods_and_no_more", G5, lambda o: pod(o).update(hostNetwork=True)),
    ("policies_let_a_job_work", CPU, lambda o: o.remove(one(o, "NetworkPolicy", "cpu-demo"))),
    ("policies_let_a_job_work", CPU, lambda o: policy(o)["policyTypes"].pop()),
    ("policies_let_a_job_work", CPU, lambda o: policy(o).update(ingress=[{}])),
    ("policies_let_a_job_work", CPU, lambda o: policy(o)["egress"].pop(0)),
    ("policies_let_a_job_work", CPU, lambda o: policy(o)["egress"][1]["ports"].pop(0)),
    ("policies_let_a_job_work", CPU, lambda o: policy(o)["egress"].pop()),
    ("policies_let_a_job_work", CPU, lambda o: policy(o)["egress"].append(
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}
    )),
    ("images_are_pinned", P5, lambda o: image(o, "registry.example/trainer:v1")),
    ("images_are_pinned", P5, lambda o: image(o, "registry.example/trainer@sha256:abc")),
    ("images_are_pinned", G5, lambda o: plugin(o, "nvidia")["containers"][0].update(image="nvcr.io/x/plugin:latest")),
    ("images_are_pinned", G5, lambda o: plugin(o, "nvidia")["containers"][0].update(image="nvcr.io:443/x/plugin")),
    ("objects_fit_client_side_apply", CPU, lambda o: one(o, "ConfigMap")["data"].update(more="x" * 250_000)),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o).pop("storageClassName")),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o).update(storageClassName="gp3")),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o).pop("volumeName")),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o).update(volumeName="other")),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o).update(accessModes=["ReadWriteOnce"])),
    ("claims_bind_to_their_volume", P5, lambda o: claim(o)["resources"]["requests"].update(storage="1201Gi")),
    ("claims_bind_to_their_volume", P5, lambda o: volume(o)["claimRef"].update(namespace="default")),
    ("claims_bind_to_their_volume", P5, lambda o: volume(o).pop("claimRef")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o).update(persistentVolumeReclaimPolicy="Delete")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o).pop("mountOptions")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o).pop("storageClassName")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o).update(accessModes=["ReadOnlyMany"])),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o)["csi"].update(driver="efs.csi.aws.com")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: volume(o)["csi"].update(volumeHandle="")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: attributes(o).pop("dnsname")),
    ("volumes_keep_data_and_mount_as_meant", P5, lambda o: attributes(o).update(mountname="fsx")),
    ("mounted_claims_exist", P5, lambda o: one(o, "PersistentVolumeClaim")["metadata"].update(name="other")),
]  # fmt: skip
RULES = {rule.__name__: rule for rule in (*platform_rules.RULES, *storage_rules.RULES)}


@pytest.mark.parametrize(
    ("rule", "profile", "damage"), BREAKS, ids=[f"{index}-{b[0]}" for index, b in enumerate(BREAKS)]
)
def test_the_rule_finds_objects_that_break_it(
    synthesized: dict[str, Any], rule: str, profile: str, damage: Break
) -> None:
    assert_found(RULES[rule], synthesized[profile].objects, damage)


def test_every_rule_has_objects_that_break_it() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(RULES)


@pytest.mark.parametrize("name", ["holdfast-trainer:local", f"1.dkr.ecr.us-west-2.amazonaws.com/assets:{'a' * 64}"])
def test_the_local_default_and_the_image_of_a_cdk_asset_are_no_breach(synthesized: dict[str, Any], name: str) -> None:
    objects = copy.deepcopy(synthesized[P5].objects)
    image(objects, name)
    assert list(platform_rules.images_are_pinned(objects)) == []


def test_tokens_are_legal_only_where_a_stack_resolves_them(synthesized: dict[str, Any]) -> None:
    objects = copy.deepcopy(synthesized[P5].platform_objects)
    attributes(objects)["mountname"] = "${Token[TOKEN.7]}"
    assert [problem.got for problem in rules.check(objects)] == ["${Token[TOKEN.7]}"]
    assert rules.check(objects, tokens=True) == []
