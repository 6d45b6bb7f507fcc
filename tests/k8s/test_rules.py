"""The rules of k8s/rules.py: all profiles keep them, and each rule finds the fault that it is there for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from holdfast.config import profile_names
from k8s import monitoring_rules, platform_rules, rules, storage_rules
from k8s.views import quantity
from tests.k8s.broken import Break, assert_found

Object = dict[str, Any]


def one(objects: list[Object], kind: str) -> Object:
    return next(item for item in objects if item["kind"] == kind)


def jobset(objects: list[Object]) -> Object:
    spec: Object = one(objects, "JobSet")["spec"]
    return spec


def job(objects: list[Object], role: int = 1) -> Object:
    spec: Object = jobset(objects)["replicatedJobs"][role]["template"]["spec"]
    return spec


def pod(objects: list[Object], role: int = 1) -> Object:
    spec: Object = job(objects, role)["template"]["spec"]
    return spec


def container(objects: list[Object], role: int = 1) -> Object:
    found: Object = pod(objects, role)["containers"][0]
    return found


def security(objects: list[Object]) -> Object:
    context: Object = container(objects)["securityContext"]
    return context


def asked(objects: list[Object], side: str) -> Object:
    found: Object = container(objects)["resources"][side]
    return found


def budget(objects: list[Object]) -> Object:
    spec: Object = one(objects, "PodDisruptionBudget")["spec"]
    return spec


def resources(objects: list[Object], **changes: str | None) -> None:
    """Change requests and limits alike; None removes."""
    long = {"gpu": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa", "pages": "hugepages-2Mi", "memory": "memory"}
    for side in container(objects)["resources"].values():
        for name, value in changes.items():
            side.pop(long[name], None)
            side |= {long[name]: value} if value is not None else {}


def volume(objects: list[Object], name: str) -> Object:
    return next(item for item in pod(objects)["volumes"] if item["name"] == name)


def config(objects: list[Object], section: str, key: str, value: Any) -> None:
    data = one(objects, "ConfigMap")["data"]
    plain = yaml.safe_load(data["run.yaml"])
    plain[section][key] = value
    data["run.yaml"] = yaml.safe_dump(plain)


def add_variable(objects: list[Object], name: str, **source: Any) -> None:
    container(objects)["env"].append({"name": name, **source})


def variable(objects: list[Object], name: str) -> Object:
    return next(item for item in container(objects)["env"] if item["name"] == name)


P5, CPU = "llama3-8b-p5x8", "cpu-demo"
BREAKS: list[tuple[str, str, Break]] = [
    ("efa_comes_with_huge_pages_and_locked_memory", P5, lambda o: resources(o, pages=None)),
    ("efa_comes_with_huge_pages_and_locked_memory", P5, lambda o: resources(o, efa=None)),
    ("efa_comes_with_huge_pages_and_locked_memory", P5, lambda o: security(o).pop("capabilities")),
    ("efa_comes_with_huge_pages_and_locked_memory", P5, lambda o: security(o).update(runAsUser=1000)),
    ("device_requests_equal_limits", P5, lambda o: asked(o, "requests").pop("nvidia.com/gpu")),
    ("device_requests_equal_limits", P5, lambda o: asked(o, "limits").update({"hugepages-2Mi": "1Gi"})),
    ("huge_pages_stand_beside_cpu_or_memory", P5, lambda o: [
        asked(o, "requests").pop(name) for name in ("cpu", "memory")
    ]),
    ("shared_memory_is_a_sized_memory_volume", CPU, lambda o: volume(o, "shm")["emptyDir"].pop("sizeLimit")),
    ("shared_memory_is_a_sized_memory_volume", P5, lambda o: volume(o, "shm")["emptyDir"].pop("medium")),
    ("devices_come_from_plugins", P5, lambda o: volume(o, "local").update(hostPath={"path": "/dev/infiniband"})),
    ("devices_come_from_plugins", P5, lambda o: security(o).update(privileged=True)),
    ("memory_covers_shared_memory_and_staging", P5, lambda o: volume(o, "shm")["emptyDir"].update(sizeLimit="8Gi")),
    ("memory_covers_shared_memory_and_staging", P5, lambda o: resources(o, memory="260Gi")),
    ("cpu_jobs_ask_for_no_devices", CPU, lambda o: resources(o, gpu="1")),
    ("cpu_jobs_ask_for_no_devices", CPU, lambda o: security(o).update(capabilities={"add": ["KILL"]})),
    ("cpu_jobs_ask_for_no_devices", CPU, lambda o: volume(o, "scratch").update(hostPath={"path": "/tmp"})),
    ("obsolete_variables_are_absent", P5, lambda o: add_variable(o, "FI_PROVIDER", value="efa")),
    ("variables_are_set_once_and_in_full", CPU, lambda o: add_variable(o, "TMPDIR", value="/tmp")),
    ("variables_are_set_once_and_in_full", CPU, lambda o: add_variable(o, "A", value="$(JOB_COMPLETION_INDEX)")),
    ("variables_are_set_once_and_in_full", CPU, lambda o: add_variable(o, "A")),
    ("namespaces_are_where_they_belong", CPU, lambda o: one(o, "PriorityClass")["metadata"].update(namespace="x")),
    ("namespaces_are_where_they_belong", CPU, lambda o: one(o, "JobSet")["metadata"].pop("namespace")),
    ("names_fit", CPU, lambda o: one(o, "JobSet")["metadata"].update(name="a" * 47)),
    ("names_fit", CPU, lambda o: one(o, "ConfigMap")["metadata"].update(name="Config")),
    ("nothing_is_unresolved", CPU, lambda o: volume(o, "storage").update(claim="fs-${Token[TOKEN.12]}")),
    ("nothing_is_unresolved", CPU, lambda o: jobset(o)["failurePolicy"].update(maxRestarts=-1.8881545897087e289)),
    ("nothing_is_unresolved", CPU, lambda o: container(o).update(image=None)),
    ("terminal_exit_codes_fail_the_job", CPU, lambda o: job(o)["podFailurePolicy"]["rules"].reverse()),
    ("terminal_exit_codes_fail_the_job", CPU, lambda o: job(o, 0)["podFailurePolicy"]["rules"].clear()),
    ("terminal_exit_codes_fail_the_job", CPU, lambda o: container(o).update(name="main")),
    ("terminal_exit_codes_fail_the_job", CPU, lambda o: jobset(o)["failurePolicy"].pop("rules")),
    ("failure_rules_have_legal_names", CPU, lambda o: jobset(o)["failurePolicy"]["rules"][0].update(name="give-up")),
    ("disruptions_do_not_count_on_workers", CPU, lambda o: job(o)["podFailurePolicy"]["rules"].pop()),
    ("disruptions_do_not_count_on_workers", CPU, lambda o: job(o).update(backoffLimit=0)),
    ("disruptions_do_not_count_on_workers", CPU, lambda o: job(o, 0).update(backoffLimit=6)),
    ("failed_pods_are_replaced_not_restarted", CPU, lambda o: pod(o).update(restartPolicy="OnFailure")),
    ("failed_pods_are_replaced_not_restarted", CPU, lambda o: job(o).pop("podReplacementPolicy")),
    ("each_job_is_one_indexed_pod", CPU, lambda o: job(o).update(completions=3, parallelism=3)),
    ("each_job_is_one_indexed_pod", CPU, lambda o: job(o).pop("completionMode")),
    ("no_liveness_probe_judges_training", CPU, lambda o: container(o).update(livenessProbe={})),
    ("ranks_end_before_the_pod_is_killed", CPU, lambda o: pod(o).update(terminationGracePeriodSeconds=6)),
    ("ranks_end_before_the_pod_is_killed", CPU, lambda o: pod(o, 0).update(terminationGracePeriodSeconds=6)),
    ("disruption_budgets_are_whole_numbers", CPU, lambda o: budget(o).update(minAvailable="50%")),
    ("disruption_budgets_are_whole_numbers", CPU, lambda o: budget(o).update(maxUnavailable=1)),
    ("disruption_budgets_are_whole_numbers", CPU, lambda o: budget(o).update(minAvailable=2)),
    ("disruption_budgets_are_whole_numbers", CPU, lambda o: budget(o).pop("selector")),
    ("the_launcher_range_holds_every_pod", CPU, lambda o: jobset(o)["replicatedJobs"][1].update(replicas=20)),
    ("the_launcher_range_holds_every_pod", CPU, lambda o: config(o, "cluster", "nodes", 4)),
    ("pods_find_one_another", CPU, lambda o: jobset(o)["network"].update(publishNotReadyAddresses=False)),
    ("pods_find_one_another", CPU, lambda o: jobset(o)["network"].pop("enableDNSHostnames")),
    ("pods_find_one_another", CPU, lambda o: jobset(o)["network"].update(subdomain="other")),
    ("pods_find_one_another", CPU, lambda o: container(o, 0)["ports"][0].update(containerPort=29500)),
    ("pods_find_one_another", CPU, lambda o: variable(o, "HOLDFAST_STORE").update(value="control:29400")),
    ("pods_find_one_another", CPU, lambda o: pod(o).update(hostNetwork=True)),
    ("references_resolve", CPU, lambda o: pod(o)["volumes"].pop()),
    ("references_resolve", CPU, lambda o: o.remove(one(o, "ConfigMap"))),
    ("references_resolve", CPU, lambda o: pod(o).update(priorityClassName="urgent")),
    ("references_resolve", CPU, lambda o: pod(o).update(serviceAccountName="default")),
    ("references_resolve", CPU, lambda o: o.remove(one(o, "Namespace"))),
    ("references_resolve", CPU, lambda o: jobset(o)["successPolicy"].update(targetReplicatedJobs=["boss"])),
    ("references_resolve", CPU, lambda o: jobset(o)["replicatedJobs"].reverse()),
]  # fmt: skip
RULES = {rule.__name__: rule for rule in rules.RULES}


@pytest.mark.parametrize("rule", RULES)
def test_every_profile_keeps_the_rule(synthesized: dict[str, Any], rule: str) -> None:
    found = {profile: list(RULES[rule](synthesized[profile].objects)) for profile in profile_names()}
    assert found == {profile: [] for profile in profile_names()}


@pytest.mark.parametrize(
    ("rule", "profile", "damage"), BREAKS, ids=[f"{index}-{b[0]}" for index, b in enumerate(BREAKS)]
)
def test_the_rule_finds_a_manifest_that_breaks_it(
    synthesized: dict[str, Any], rule: str, profile: str, damage: Break
) -> None:
    assert_found(RULES[rule], synthesized[profile].objects, damage)


def test_every_rule_has_a_manifest_that_breaks_it() -> None:
    # test_platform_rules.py, test_monitoring.py
    elsewhere = {rule.__name__ for rule in (*platform_rules.RULES, *storage_rules.RULES, *monitoring_rules.RULES)}
    assert {rule for rule, _, _ in BREAKS} == set(RULES) - elsewhere


@pytest.mark.parametrize(
    "name",
    [
        "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "RDMAV_FORK_SAFE", "NCCL_PROTO", "NCCL_BUFFSIZE",
        "NCCL_P2P_NET_CHUNKSIZE", "NCCL_TUNER_PLUGIN", "NCCL_NET", "NCCL_NET_FORCE_FLUSH", "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_TRACE_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS",
    ],
)  # fmt: skip
def test_an_obsolete_variable_in_any_workload_is_found_with_the_reason(name: str) -> None:
    template = {"spec": {"containers": [{"name": "plugin", "env": [{"name": name, "value": "1"}]}]}}
    daemon = {
        "kind": "DaemonSet",
        "metadata": {"name": "plugin", "namespace": "kube-system"},
        "spec": {"template": template},
    }
    (problem,) = rules.obsolete_variables_are_absent([daemon])
    assert name in problem.key
    assert problem.why


@pytest.mark.parametrize(("text", "number"), [("5120Mi", 5120 * 2**20), ("500m", 0.5), ("32", 32), (8, 8), ("1G", 1e9)])
def test_quantities_are_read_as_kubernetes_reads_them(text: str | int, number: float) -> None:
    assert quantity(text) == number
