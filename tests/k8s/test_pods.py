"""What a pod asks of its node: devices, memory, capabilities, volumes, and when it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.config import load_profile, names, profile_names, sizing
from k8s.views import quantity
from tests.k8s.job_view import Job, Object

Render = Callable[..., list[Object]]


# case-30: shared memory, EFA, huge pages, locked memory


@pytest.mark.parametrize("profile", ["llama3-8b-p5x2", "llama3-8b-p5x8"])
def test_a_p5_worker_takes_the_whole_node_and_may_lock_memory(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    worker = job.container(names.WORKERS)
    asked = worker["resources"]
    for side in (asked["requests"], asked["limits"]):
        assert side["nvidia.com/gpu"] == "8"
        assert side["vpc.amazonaws.com/efa"] == "32"
        assert side["hugepages-2Mi"] == "5120Mi"
    assert asked["requests"]["memory"] == asked["limits"]["memory"]
    assert "cpu" in asked["requests"]
    assert "cpu" not in asked["limits"]
    assert worker["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert job.volume("/dev/shm") == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Gi"}}
    local = {"path": f"/mnt/k8s-disks/0/holdfast/{job.config.name}", "type": "DirectoryOrCreate"}
    assert job.volume("/local") == {"name": "local", "hostPath": local}


@pytest.mark.parametrize("profile", ["cpu-demo", "cpu-test"])
def test_a_cpu_job_asks_for_no_device_capability_or_host_path(synthesized: dict[str, Any], profile: str) -> None:
    text = synthesized[profile].files["30-jobset.yaml"]
    words = ("nvidia.com", "vpc.amazonaws.com", "hugepages", "capabilities", "hostPath", "nodeSelector", "affinity")
    assert [word for word in words if word in text] == []


def test_a_local_tier_of_a_cpu_job_lies_on_the_node_and_its_pods_are_told_where(render: Render) -> None:
    job = Job(render("cpu-demo", "checkpoint.local.interval_steps=2"))
    folder = {"path": "/var/lib/holdfast/cpu-demo", "type": "DirectoryOrCreate"}
    assert job.volume("/local") == {"name": "local", "hostPath": folder}
    assert job.environment(names.WORKERS)["HOLDFAST_NODE_VOLUME"]["value"] == "/local"
    assert "HOLDFAST_NODE_VOLUME" not in job.environment(names.CONTROL)


def test_a_local_tier_in_memory_needs_no_host_path(render: Render) -> None:
    job = Job(render("gpt2-g5x2", "checkpoint.local.interval_steps=2", "checkpoint.local.path=/dev/shm/local"))
    assert job.volume("/local") is None
    assert job.environment(names.WORKERS)["HOLDFAST_NODE_VOLUME"]["value"] == "/dev/shm/local"


def test_a_g5_worker_takes_its_gpu_and_neither_efa_nor_capabilities(jobs: dict[str, Job]) -> None:
    job = jobs["gpt2-g5x2"]
    worker = job.container(names.WORKERS)
    assert set(worker["resources"]["limits"]) == {"memory", "nvidia.com/gpu"}
    assert "add" not in worker["securityContext"]["capabilities"]
    assert job.volume("/local") is None
    assert job.environment(names.WORKERS)["NCCL_NET_PLUGIN"]["value"] == "none"


def test_a_job_on_this_machines_gpus_asks_for_one_gpu_per_rank_and_no_node_label(render: Render) -> None:
    job = Job(render("gpu-local", "cluster.ranks_per_node=2"))
    assert set(job.container(names.WORKERS)["resources"]["limits"]) == {"memory", "nvidia.com/gpu"}
    assert job.container(names.WORKERS)["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nodeSelector" not in job.pod(names.WORKERS)
    assert "NCCL_SHM_USE_CUDA_MEMCPY" not in job.environment(names.WORKERS)


@pytest.mark.parametrize("profile", [p for p in profile_names() if load_profile(p).instance.ec2])
def test_memory_covers_shared_memory_and_a_staged_checkpoint(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    shm = quantity(job.volume("/dev/shm")["emptyDir"]["sizeLimit"])  # type: ignore[index]
    memory = quantity(job.container(names.WORKERS)["resources"]["limits"]["memory"])
    staging = sizing.shared_memory_bytes_per_node(job.config)
    assert staging < shm
    assert shm + staging < memory


@pytest.mark.parametrize(("accounting_mib", "memory"), [(1200, "2Gi"), (3000, "3848Mi")])
def test_the_control_pod_has_room_for_the_accounting_and_for_two_processes_with_torch(
    render: Render, accounting_mib: int, memory: str
) -> None:
    job = Job(render("llama3-8b-p5x8", f"metrics.goodput_memory_mib={accounting_mib}"))
    resources = job.container(names.CONTROL)["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == memory
    assert quantity(memory) >= (accounting_mib + 2 * 400) * 2**20


@pytest.mark.parametrize("profile", profile_names())
def test_nvlink_sharp_is_switched_off_only_for_in_process_restart_on_gpus(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    off = job.config.recovery.in_process and job.config.device == "cuda"
    assert ("NCCL_NVLS_ENABLE" in job.environment(names.WORKERS)) == off
    assert ("TORCH_NCCL_RETHROW_CUDA_ERRORS" in job.environment(names.WORKERS)) == off


@pytest.mark.parametrize("profile", profile_names())
def test_pods_wait_a_minute_for_a_lost_node_and_are_not_moved_for_tidiness(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for part, role in ((job.control, names.CONTROL), (job.workers, names.WORKERS)):
        annotations = part["template"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        pod = job.pod(role)
        waits = {t["key"]: t["tolerationSeconds"] for t in pod["tolerations"] if "tolerationSeconds" in t}
        assert waits == {"node.kubernetes.io/not-ready": 60, "node.kubernetes.io/unreachable": 60}
        assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
        assert job.container(role)["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert job.container(role)["imagePullPolicy"] == "IfNotPresent"
        assert pod["serviceAccountName"] == "trainer"
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert (gpu in job.pod(names.WORKERS)["tolerations"]) == (job.config.device == "cuda")
    assert gpu not in job.pod(names.CONTROL)["tolerations"]
