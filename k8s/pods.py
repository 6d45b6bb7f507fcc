"""Pod templates of the two roles, as plain dicts. Commands and environment come from holdfast/launch.py."""

from __future__ import annotations

from holdfast import launch
from holdfast.config import RunConfig, names
from holdfast.config.metrics import served_ports
from k8s.local_disk import host_folder
from k8s.placement import GPU_NODES, GPU_TAINT, INSTANCE_TYPE, SYSTEM_NODES, Manifest, toleration
from k8s.space import PRIORITY_CLASS

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
HUGEPAGES = "hugepages-2Mi"
NETWORK_LAYER = "topology.k8s.aws/network-node-layer-3"
"""EKS node label: nodes with equal values share the network layer next to them."""
CONTROL_GRACE_S = 30
"""At least; nvrx-control ends within seconds of SIGTERM and has nothing to save."""
CONTROL_MEMORY_MIB = 848
"""nvrx-control and its supervisor each import torch (about 0.4 GiB). The accounting of goodput comes on top."""


def worker_pod(config: RunConfig, job: str) -> Manifest:
    """Pod template of one training node. `job` is the JobSet's name."""
    container = _container(config, job, "worker") | {
        "resources": _worker_resources(config),
        # Ready = the launcher runs, so that a drain goes on only when the replacement has joined. No liveness probe:
        # the rank monitors decide what a hang is, and a kubelet would kill a pod that is in a long restore.
        "readinessProbe": {
            "exec": {"command": ["test", "-f", f"{names.SCRATCH_MOUNT}/{names.READY_FILE}"]},
            "periodSeconds": 5,
        },
    }
    if ports := served_ports(config):
        container["ports"] = [
            {"name": f"{names.METRICS_PORT_NAME}-{rank}", "containerPort": port} for rank, port in enumerate(ports)
        ]
    container["volumeMounts"] += _worker_mounts(config)
    pod = _pod(config, job, "worker", container, grace_s=config.cluster.grace_period_s)
    pod["spec"]["volumes"] += _worker_volumes(config)
    pod["spec"] |= _placement(config, job)
    return pod


def control_pod(config: RunConfig, job: str) -> Manifest:
    """Pod template of the CPU pod that holds the rendezvous store. `job` is the JobSet's name."""
    mib = CONTROL_MEMORY_MIB + config.metrics.goodput_memory_mib
    memory = f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"
    container = _container(config, job, "control") | {
        "ports": [{"name": names.STORE_PORT_NAME, "containerPort": names.STORE_PORT}, *_control_metrics_port(config)],
        "resources": {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}},
        # Workers start when the store listens. A bare connect does not disturb it.
        "readinessProbe": {"tcpSocket": {"port": names.STORE_PORT}, "periodSeconds": 2},
    }
    # Workers that are asked to go agree on their last save, and acknowledge it, through this pod's store.
    grace_s = max(CONTROL_GRACE_S, config.cluster.grace_period_s)
    pod = _pod(config, job, "control", container, grace_s=grace_s)
    if config.instance.ec2:
        pod["spec"]["nodeSelector"] = (
            SYSTEM_NODES  # these fail less often than GPU nodes, and the store dies with its pod
        )
    return pod


def _control_metrics_port(config: RunConfig) -> list[Manifest]:
    return [{"name": names.METRICS_PORT_NAME, "containerPort": port} for port in served_ports(config)[:1]]


def _container(config: RunConfig, job: str, role: str) -> Manifest:
    return {
        "name": names.TRAINER_CONTAINER if role == "worker" else names.CONTROL_CONTAINER,
        "image": config.image,
        "imagePullPolicy": "IfNotPresent",  # a replaced pod must not wait for a registry; images are pinned by digest
        "command": launch.pod_command(config, role),
        "env": [_env(variable) for variable in launch.pod_environment(config, job, role)],
        "securityContext": _security(config, role),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # `kubectl describe pod` then shows the error itself
        "volumeMounts": [
            {"name": "storage", "mountPath": config.storage.mount_path},
            {"name": "config", "mountPath": names.CONFIG_MOUNT, "readOnly": True},
            {"name": "scratch", "mountPath": names.SCRATCH_MOUNT},
        ],
    }


def _pod(config: RunConfig, job: str, role: str, container: Manifest, *, grace_s: int) -> Manifest:
    return {
        "metadata": {
            "labels": {**labels(job), "app.kubernetes.io/component": role},
            "annotations": {
                # Consolidation and scale-in count a training pod as movable; moving one stops all.
                "karpenter.sh/do-not-disrupt": "true",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": {
            "restartPolicy": "Never",  # podFailurePolicy needs it, and only the launcher may restart in place
            "terminationGracePeriodSeconds": grace_s,
            "priorityClassName": PRIORITY_CLASS,
            "serviceAccountName": names.SERVICE_ACCOUNT,  # its Pod Identity role, where it has one
            "enableServiceLinks": False,  # every Service of the namespace would add variables
            "automountServiceAccountToken": False,  # training needs no Kubernetes API, Pod Identity brings its own
            "tolerations": _node_loss_tolerations(),
            "containers": [container],
            "volumes": [
                {"name": "storage", "persistentVolumeClaim": {"claimName": config.storage.claim}},
                {"name": "config", "configMap": {"name": config_name(job)}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
    }


def labels(job: str) -> dict[str, str]:
    """Labels of everything that belongs to one job."""
    return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": job}


def config_name(job: str) -> str:
    """Name of the job's ConfigMap."""
    return f"{job}-config"


def _env(variable: launch.Variable) -> Manifest:
    if variable.field_path is not None:
        return {"name": variable.name, "valueFrom": {"fieldRef": {"fieldPath": variable.field_path}}}
    return {"name": variable.name, "value": variable.value}


def _security(config: RunConfig, role: str) -> Manifest:
    if config.instance.is_cpu:
        return {"allowPrivilegeEscalation": False}
    context: Manifest = {
        # Root: IPC_LOCK does nothing for another user, and NCCL then falls back to TCP in silence. The control pod is
        # root too: both write into one run directory. seccomp stays unset: RuntimeDefault forbids numactl's membind.
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if role == "worker" and config.instance.efa:
        context["capabilities"]["add"] = ["IPC_LOCK"]  # EFA registers memory; without it the limit is 8 MiB
    return context


def _worker_resources(config: RunConfig) -> Manifest:
    instance = config.instance
    limits = {"memory": f"{instance.memory_gib}Gi"}
    if instance.gpus:
        limits[GPU] = str(config.cluster.ranks_per_node)
    if instance.efa:
        limits[EFA] = str(instance.efa)  # all of them: NCCL pairs each GPU with its near interfaces
    if instance.hugepages_mib:
        # The EFA provider's buffers; to map huge pages without having asked for them is a SIGBUS.
        limits[HUGEPAGES] = f"{instance.hugepages_mib}Mi"
    # No CPU limit: throttling shows up as a straggler, and nothing else wants these cores.
    return {"requests": {"cpu": str(instance.cpus), **limits}, "limits": limits}


def _worker_mounts(config: RunConfig) -> list[Manifest]:
    mounts = [{"name": "shm", "mountPath": names.SHM_MOUNT}]
    if host_folder(config):
        mounts.append({"name": "local", "mountPath": names.LOCAL_MOUNT})
    return mounts


def _worker_volumes(config: RunConfig) -> list[Manifest]:
    # The runtime's default /dev/shm has 64 MiB: NCCL and staged checkpoints die of SIGBUS. An emptyDir ends with the
    # pod, a hostPath would leak into the next. What is used counts towards the memory limit.
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{config.instance.shm_gib}Gi"}}
    ]
    folder = host_folder(config)
    if folder:
        # hostPath, since an emptyDir on the same disks dies with the pod.
        volumes.append({"name": "local", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}})
    return volumes


def _placement(config: RunConfig, job: str) -> Manifest:
    instance = config.instance
    placement: Manifest = {}
    if instance.gpus:
        # Not the start-up taint: it keeps pods away from a node that cannot mount the file system yet.
        placement["tolerations"] = [*_node_loss_tolerations(), toleration(GPU_TAINT)]
    if instance.ec2:
        placement["nodeSelector"] = {**GPU_NODES, INSTANCE_TYPE: instance.name}
    if instance.efa:
        # Soft: a job that runs a hop further away is better than one that waits.
        workers = {"matchLabels": {JOBSET_NAME: job, REPLICATED_JOB: names.WORKERS}}
        term = {"labelSelector": workers, "topologyKey": NETWORK_LAYER}
        preferred = [{"weight": 100, "podAffinityTerm": term}]
        placement["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return placement


def _node_loss_tolerations() -> list[Manifest]:
    # 60 s instead of Kubernetes' 300: a node that is away for so long is replaced.
    return [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
        for state in ("not-ready", "unreachable")
    ]
