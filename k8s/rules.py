"""What no schema says: rules over synthesized objects, as pure functions. Synthesis refuses objects that break one.

Each rule takes all objects of one job or cluster as plain dicts and yields a Problem for each breach. Rules that
compare with the config read it from the ConfigMap among the objects and are silent without one. Rules of how a JobSet
recovers are in recovery_rules.py, of what it stands on in platform_rules.py and storage_rules.py, of who may look at it
in monitoring_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from holdfast.config import Problem, names, sizing
from k8s import monitoring_rules, platform_rules, recovery_rules, storage_rules
from k8s.local_disk import host_folder
from k8s.pods import EFA, GPU, HUGEPAGES
from k8s.views import (
    Objects,
    added_capabilities,
    containers,
    jobset_pods,
    limits,
    pods,
    quantity,
    requests,
    run_config,
    scalars,
    title,
)

Rule = Callable[[Objects], Iterator[Problem]]

CLUSTER_SCOPED = {
    "ClusterRole", "ClusterRoleBinding", "CSIDriver", "CustomResourceDefinition", "Namespace", "Node",
    "PersistentVolume", "PriorityClass", "RuntimeClass", "StorageClass",
}  # fmt: skip
OBSOLETE = {
    "FI_PROVIDER": "the OFI plugin picks efa itself",
    "FI_EFA_USE_DEVICE_RDMA": "on by default since libfabric 1.18",
    "FI_EFA_FORK_SAFE": "the OFI plugin sets it",
    "RDMAV_FORK_SAFE": "it makes every registration slower and is not needed",
    "NCCL_PROTO": "the OFI plugin's tuner chooses",
    "NCCL_ALGO": "the OFI plugin's tuner chooses",
    "NCCL_BUFFSIZE": "the OFI plugin sets the instance type's value",
    "NCCL_P2P_NET_CHUNKSIZE": "the OFI plugin sets the instance type's value",
    "NCCL_NVLS_CHUNKSIZE": "the OFI plugin sets the instance type's value",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "the OFI plugin sets the instance type's value",
    "NCCL_NET_FORCE_FLUSH": "the OFI plugin sets the instance type's value",
    "NCCL_TUNER_PLUGIN": "the OFI plugin brings its own",
    "NCCL_NET": "the plugin's name has changed, and a wrong one stops NCCL",
    "NCCL_BLOCKING_WAIT": "a blocked wait cannot be aborted",
    "TORCH_NCCL_BLOCKING_WAIT": "a blocked wait cannot be aborted",
    "NCCL_ASYNC_ERROR_HANDLING": "replaced by TORCH_NCCL_ASYNC_ERROR_HANDLING, whose default is right",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "renamed TORCH_FR_BUFFER_SIZE",
    "PYTORCH_CUDA_ALLOC_CONF": "renamed PYTORCH_ALLOC_CONF",
    "CUDA_DEVICE_MAX_CONNECTIONS": "a setting of tensor parallelism; it slows FSDP2",
}
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MIB = 2**20


def check(objects: Objects, *, tokens: bool = False) -> list[Problem]:
    """Every breach of every rule, in the order of the rules. tokens: CDK's are legal, since a stack resolves them."""
    rules = [rule for rule in RULES if not (tokens and rule is nothing_is_unresolved)]
    return [problem for rule in rules for problem in rule(objects)]


def efa_comes_with_huge_pages_and_locked_memory(objects: Objects) -> Iterator[Problem]:
    """EFA without one of them falls back to TCP in silence or dies; either of them without EFA is waste."""
    for where, container in containers(pods(objects)):
        efa = quantity(limits(container).get(EFA, 0)) > 0
        pages, added = limits(container).get(HUGEPAGES), added_capabilities(container)
        if efa != (pages is not None):
            yield Problem(f"{where}.limits.{HUGEPAGES}", pages, f"{EFA} and it go together", "request both or none")
        if efa != ("IPC_LOCK" in added):
            yield Problem(f"{where}.capabilities", added, f"{EFA} and IPC_LOCK go together", "use both or none")
        user = container.get("securityContext", {}).get("runAsUser")
        if efa and user != 0:
            yield Problem(f"{where}.runAsUser", user, "IPC_LOCK has no effect for other users than root", "use 0")


def device_requests_equal_limits(objects: Objects) -> Iterator[Problem]:
    """Kubernetes refuses extended resources and huge pages that are overcommitted, when the first pod is made."""
    for where, container in containers(pods(objects)):
        wanted, most = requests(container), limits(container)
        for name in sorted({*wanted, *most}):
            if ("/" in name or name.startswith("hugepages-")) and wanted.get(name) != most.get(name):
                why = f"the limit is {most.get(name)}"
                yield Problem(f"{where}.requests.{name}", wanted.get(name), why, "make them equal")


def huge_pages_stand_beside_cpu_or_memory(objects: Objects) -> Iterator[Problem]:
    """Kubernetes refuses a container that asks for huge pages alone."""
    for where, container in containers(pods(objects)):
        wanted = requests(container)
        if HUGEPAGES in wanted and not {"cpu", "memory"} & set(wanted):
            yield Problem(f"{where}.requests", dict(wanted), "huge pages need cpu or memory beside them", "add them")


def shared_memory_is_a_sized_memory_volume(objects: Objects) -> Iterator[Problem]:
    """NCCL and staged checkpoints need more than the runtime's 64 MiB."""
    for pod in jobset_pods(objects):
        shm = pod.volume_at(names.SHM_MOUNT)
        medium = (shm or {}).get("emptyDir", {})
        if pod.role == names.WORKERS and not (medium.get("medium") == "Memory" and medium.get("sizeLimit")):
            why = f"{names.SHM_MOUNT} must be an emptyDir in memory with a sizeLimit"
            yield Problem(f"{pod.where}.volumes", shm, why, "mount one")


def devices_come_from_plugins(objects: Objects) -> Iterator[Problem]:
    """A privileged container sees all GPUs of the node, and a host path over /dev hides what the plugins give."""
    for pod in jobset_pods(objects):
        for volume in pod.spec.get("volumes", ()):
            path = volume.get("hostPath", {}).get("path", "")
            if path == "/dev" or path.startswith("/dev/"):
                yield Problem(
                    f"{pod.where}.volumes.{volume['name']}", path, "it hides the plugins' devices", "remove it"
                )
    for where, container in containers(jobset_pods(objects)):
        if container.get("securityContext", {}).get("privileged"):
            yield Problem(f"{where}.privileged", True, "devices come from the plugins", "remove it")


def memory_covers_shared_memory_and_staging(objects: Objects) -> Iterator[Problem]:
    """A worker stages its part of a checkpoint in /dev/shm, and what that holds counts towards the memory limit. So do
    the parts that a local tier keeps in memory.

    Not judged for `cpu` and `gpu-local`, whose real memory nobody knows here.
    """
    config = run_config(objects)
    if config is None or config.checkpoint.mode != "async" or not config.instance.ec2:
        return
    staging = sizing.shared_memory_bytes_per_node(config) // _MIB
    for pod in jobset_pods(objects):
        shm = (pod.volume_at(names.SHM_MOUNT) or {}).get("emptyDir", {}).get("sizeLimit")
        if pod.role != names.WORKERS or shm is None:
            continue
        size = int(quantity(shm)) // _MIB
        memory = sum(int(quantity(limits(container).get("memory", 0))) for container in pod.containers) // _MIB
        got, fix = config.cluster.instance_type, "use more nodes, a smaller model, or a type with more memory"
        if staging > size:
            why = f"what a node stages and keeps of checkpoints takes {staging} MiB, its {names.SHM_MOUNT} has {size}"
            yield Problem("cluster.instance_type", got, why, fix)
        if staging + size > memory:
            why = f"{staging} MiB of checkpoint and {size} MiB of {names.SHM_MOUNT} exceed the pod's {memory} MiB"
            yield Problem("cluster.instance_type", got, why, fix)


def cpu_jobs_ask_for_no_devices(objects: Objects) -> Iterator[Problem]:
    """The CPU profile must run on any node, under the `baseline` pod security level. A local checkpoint tier, which is
    off by default, needs a folder of the node and with it a higher level.
    """
    config = run_config(objects)
    if config is None or config.device != "cpu":
        return
    for where, container in containers(jobset_pods(objects)):
        asked = [*sorted({GPU, EFA, HUGEPAGES} & {*limits(container), *requests(container)})]
        asked += added_capabilities(container)
        if asked:
            yield Problem(where, asked, "a CPU job needs neither devices nor capabilities", "remove them")
    for pod in jobset_pods(objects):
        for volume in pod.spec.get("volumes", ()):
            if "hostPath" in volume and volume["hostPath"].get("path") != host_folder(config):
                key = f"{pod.where}.volumes.{volume['name']}"
                yield Problem(key, volume["hostPath"], "a CPU job needs no host path", "remove it")


def obsolete_variables_are_absent(objects: Objects) -> Iterator[Problem]:
    """Copied from old samples, they fight with what the libraries choose today."""
    for where, container in containers(pods(objects)):
        for variable in container.get("env", ()):
            name = variable["name"]
            if name in OBSOLETE:
                yield Problem(f"{where}.env.{name}", variable.get("value"), OBSOLETE[name], "remove it")


def variables_are_set_once_and_in_full(objects: Objects) -> Iterator[Problem]:
    """A second entry wins in silence, and `$(NAME)` stays as text where NAME comes later or not at all."""
    for where, container in containers(pods(objects)):
        seen: set[str] = set()
        for variable in container.get("env", ()):
            name, value = variable["name"], variable.get("value")
            key = f"{where}.env.{name}"
            if name in seen:
                yield Problem(key, value, "it is set twice", "set it once")
            if (value is None) == ("valueFrom" not in variable):
                yield Problem(key, value, "exactly one of value and valueFrom must be set", "choose one")
            if value is not None and "$(" in value:
                yield Problem(key, value, "the kubelet does not expand what it defines later", "use a fieldRef")
            seen.add(name)


def namespaces_are_where_they_belong(objects: Objects) -> Iterator[Problem]:
    """A namespace on a cluster-scoped object breaks `kubectl apply`; others without one land where kubectl points."""
    for item in objects:
        namespace, key = item["metadata"].get("namespace"), f"{title(item)}.metadata.namespace"
        if item["kind"] in CLUSTER_SCOPED and namespace is not None:
            yield Problem(key, namespace, f"{item['kind']} is cluster-scoped", "remove it")
        if item["kind"] not in CLUSTER_SCOPED and not namespace:
            yield Problem(key, namespace, f"{item['kind']} is namespaced", "set it")


def names_fit(objects: Objects) -> Iterator[Problem]:
    """63 characters for everything that becomes a DNS name, with what JobSet, Job and kubelet add to it."""
    fix = "shorten the run's name"
    for item in objects:
        name, key = item["metadata"]["name"], f"{title(item)}.metadata.name"
        if len(name) > 63 or not _NAME.fullmatch(name):
            yield Problem(key, name, "it is not a DNS name of at most 63 characters", fix)
    for pod in jobset_pods(objects):
        name = f"{pod.jobset['metadata']['name']}-{pod.role}-{max(pod.replicas - 1, 0)}-0-xxxxx"
        if len(name) > 63 or not _LABEL.fullmatch(name):
            why = f"it is not a DNS label that starts with a letter and has at most 63 characters ({len(name)})"
            yield Problem(f"{pod.where}.template.metadata.name", name, why, fix)


def nothing_is_unresolved(objects: Objects) -> Iterator[Problem]:
    """CDK tokens that were rendered outside a CDK stack: text `${Token[..]}`, numbers near -1.9e289."""
    for item in objects:
        for path, value in scalars(item):
            text = isinstance(value, str) and "${Token[" in value
            number = isinstance(value, int | float) and value < -1e200
            if text or number or value is None:
                yield Problem(f"{title(item)}{path}", value, "no cluster can use it", "pass the value itself")


RULES: tuple[Rule, ...] = (
    efa_comes_with_huge_pages_and_locked_memory,
    device_requests_equal_limits,
    huge_pages_stand_beside_cpu_or_memory,
    shared_memory_is_a_sized_memory_volume,
    devices_come_from_plugins,
    memory_covers_shared_memory_and_staging,
    cpu_jobs_ask_for_no_devices,
    obsolete_variables_are_absent,
    variables_are_set_once_and_in_full,
    namespaces_are_where_they_belong,
    names_fit,
    nothing_is_unresolved,
    *recovery_rules.RULES,
    *platform_rules.RULES,
    *storage_rules.RULES,
    *monitoring_rules.RULES,
)
"""In the order in which they are reported."""
