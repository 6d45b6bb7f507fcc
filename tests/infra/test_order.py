"""What depends on what over all stacks (case-26), and that our own taints are tolerated by what must run (case-31)."""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import Any

from holdfast.config import names
from k8s.job import job_set
from tests.infra.assembly import FILE_SYSTEM, MANIFEST, NODEGROUP, Assembly, Node
from tests.infra.conftest import Synth

EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}


def tolerated(taint: dict[str, str], tolerations: list[dict[str, Any]]) -> bool:
    """Whether a node group's taint is tolerated by a pod, by the rules of Kubernetes."""
    return any(
        t.get("key") in (None, taint["Key"])
        and t.get("effect") in (None, EFFECTS[taint["Effect"]])
        and (t.get("operator") == "Exists" or t.get("value", "") == taint.get("Value", ""))
        for t in tolerations
    )


def test_every_manifest_waits_for_nodes_csi_driver_file_system_and_access(assembly: Assembly) -> None:
    add_ons = assembly.all("Cluster", "AWS::EKS::Addon").items()
    (csi,) = [name for name, found in add_ons if found["Properties"]["AddonName"] == "aws-fsx-csi-driver"]
    wanted = {Node("Cluster", csi)}
    for stack, kind in (("Cluster", NODEGROUP), ("Cluster", "AWS::EKS::AccessEntry"), ("Storage", FILE_SYSTEM)):
        wanted |= {Node(stack, name) for name in assembly.all(stack, kind)}
    manifests = [Node("Workload", name) for name in assembly.all("Workload", MANIFEST)]
    assert len(manifests) == 4 and len(wanted) == 5
    for manifest in manifests:
        assert wanted <= assembly.everything_before(manifest)


def test_nothing_depends_on_itself(assembly: Assembly) -> None:
    order = list(TopologicalSorter({node: assembly.needs(node) for node in assembly.nodes}).static_order())
    assert len(order) == len(assembly.nodes) > 50


def test_manifests_are_applied_one_after_another_with_the_namespace_before_the_claim(assembly: Assembly) -> None:
    kinds = [item["kind"] for item in assembly.objects]
    assert kinds.index("Namespace") < kinds.index("PersistentVolumeClaim")
    found = assembly.all("Workload", MANIFEST)
    waits = [found[name].get("DependsOn", []) for name in found]
    assert waits == [[], *([name] for name in list(found)[:-1])]


def test_manifests_replace_what_is_there_and_are_never_pruned_by_label(assembly: Assembly) -> None:
    for manifest in assembly.all("Workload", MANIFEST).values():
        assert manifest["Properties"]["Overwrite"] is True and "PruneLabel" not in manifest["Properties"]


def test_gpu_nodes_can_be_destroyed_alone(assembly: Assembly) -> None:
    """`cdk destroy Gpu` takes along every stack that depends on it: there must be none."""
    assert all("Gpu" not in needs for needs in assembly.stack_needs.values())
    assert assembly.stack_needs["Gpu"] == {"Network", "Cluster", "Storage", "Workload"}


def test_the_training_job_is_in_no_stack(assembly: Assembly) -> None:
    assert not {"JobSet", "Job", "ConfigMap", "PodDisruptionBudget"} & {item["kind"] for item in assembly.objects}


def test_the_taints_of_gpu_nodes_are_tolerated_by_workers_and_plugins(assembly: Assembly) -> None:
    taints = assembly.one("Gpu", NODEGROUP)["Taints"]
    plugins = [item["spec"]["template"]["spec"] for item in assembly.objects if item["kind"] == "DaemonSet"]
    assert len(plugins) == (2 if assembly.config.instance.efa else 1)
    for pod in plugins:
        assert all(tolerated(taint, pod["tolerations"]) for taint in taints)
        assert pod["nodeSelector"] == {names.POOL_LABEL: names.GPU_POOL}
    jobs = job_set(assembly.config, "job")["spec"]["replicatedJobs"]
    (worker,) = [job["template"]["spec"]["template"]["spec"] for job in jobs if job["name"] == names.WORKERS]
    # The other one is gone when the file system can be mounted; a worker must not run before.
    (gpu,) = [taint for taint in taints if taint["Key"] == names.GPU_TAINT]
    assert tolerated(gpu, worker["tolerations"])


def test_labels_that_pods_select_are_on_their_nodes(assembly: Assembly) -> None:
    jobs = job_set(assembly.config, "job")["spec"]["replicatedJobs"]
    for job in jobs:
        selector = job["template"]["spec"]["template"]["spec"].get("nodeSelector", {})
        stack = "Gpu" if job["name"] == names.WORKERS else "Cluster"
        labels = dict(assembly.one(stack, NODEGROUP)["Labels"])
        labels["node.kubernetes.io/instance-type"] = assembly.one(stack, "AWS::EC2::LaunchTemplate")[
            "LaunchTemplateData"
        ]["InstanceType"]
        assert selector.items() <= labels.items()


def test_each_stack_says_what_it_is_and_carries_our_tags(synth: Synth) -> None:
    import json

    built = synth("gpt2-g5x2", "cost.expires_at=2026-12-31")
    artifacts = json.loads((built.folder / "manifest.json").read_text())["artifacts"]
    for stack, template in built.templates.items():
        assert template["Description"].startswith("Holdfast gpt2-g5x2: ")
        properties = artifacts[stack]["properties"]
        assert properties["tags"] == {"Project": "gpt2-g5x2", "Owner": "holdfast", "ExpiresAt": "2026-12-31"}
        assert properties["stackName"] == names.stack_name("gpt2-g5x2", stack.lower())
