"""Rules of what a job stands on: storage, nodes and plugins, namespace, network, images. See rules.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from holdfast.config import Problem, RunConfig, names
from k8s.placement import GPU_NODES, GPU_POOL_TAINTS, GPU_TAINT, INSTANCE_TYPE, START_UP_TAINT, SYSTEM_NODES, tolerates
from k8s.plugins import PLUGIN_SOCKETS
from k8s.pods import JOBSET_NAME
from k8s.space import ENFORCE
from k8s.views import (
    JobSetPod,
    Object,
    Objects,
    Pod,
    added_capabilities,
    containers,
    jobset_pods,
    of_kind,
    pods,
    run_config,
    title,
)

APPLY_LIMIT = 250_000
"""Bytes. `kubectl apply` copies the object into an annotation, and those may have 262144 in all."""
NOT_OURS = {"default", "kube-system", "kube-public", "kube-node-lease", "jobset-system"}
_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}|.+/.+:[0-9a-f]{64}")
"""A digest, or the tag of a CDK asset: a hash of its content, in a repository whose tags cannot be moved."""
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip


def tainted_nodes_take_what_belongs_there(objects: Objects) -> Iterator[Problem]:
    """Our own taints must not keep out a plugin or a worker; the start-up taint must keep workers waiting."""
    for pod in pods(objects):
        if pod.spec.get("nodeSelector", {}).get(names.POOL_LABEL) != names.GPU_POOL:
            continue
        given, worker = pod.spec.get("tolerations", []), isinstance(pod, JobSetPod)
        for taint in (GPU_TAINT,) if worker else GPU_POOL_TAINTS:
            if not tolerates(given, taint):
                why = f"GPU nodes have the taint {taint.key}:{taint.effect}"
                yield Problem(f"{pod.where}.tolerations", given, why, "tolerate it")
        if worker and tolerates(given, START_UP_TAINT):
            why = f"with {START_UP_TAINT.key} it starts before the node can mount its storage"
            yield Problem(f"{pod.where}.tolerations", given, why, "do not tolerate the start-up taint")


def plugins_stay_on_gpu_nodes(objects: Objects) -> Iterator[Problem]:
    """On a node without the device a plugin crashes for ever."""
    for pod in pods(objects):
        if any(path.rstrip("/") == PLUGIN_SOCKETS for path in _host_paths(pod)):
            selector = pod.spec.get("nodeSelector", {})
            if not GPU_NODES.items() <= selector.items():
                yield Problem(f"{pod.where}.nodeSelector", selector, "other nodes have no device", f"add {GPU_NODES}")


def pods_select_labels_that_nodes_have(objects: Objects) -> Iterator[Problem]:
    """A label that no node group sets leaves the pod Pending, with GPUs running beside it."""
    config = run_config(objects)
    for pod in pods(objects):
        known = {(names.POOL_LABEL, names.SYSTEM_POOL), (names.POOL_LABEL, names.GPU_POOL)}
        known |= {(INSTANCE_TYPE, config.cluster.instance_type)} if config else set()
        for label, value in pod.spec.get("nodeSelector", {}).items():
            if (label, value) not in known:
                fix = "select " + " or ".join(sorted(f"{key}={text}" for key, text in known))
                yield Problem(f"{pod.where}.nodeSelector.{label}", value, "no node of ours has it", fix)
        selector = pod.spec.get("nodeSelector", {})
        if config and config.instance.ec2 and isinstance(pod, JobSetPod):
            wanted = GPU_NODES if pod.role == names.WORKERS else SYSTEM_NODES
            if not wanted.items() <= selector.items():
                yield Problem(f"{pod.where}.nodeSelector", selector, "it belongs to one node group", f"add {wanted}")


def the_namespace_is_our_own(objects: Objects) -> Iterator[Problem]:
    """Its Pod Security level, its policies and its end are ours to decide."""
    for item in of_kind(objects, "Namespace"):
        name = item["metadata"]["name"]
        if name in NOT_OURS:
            yield Problem(
                "cluster.namespace", name, "it belongs to Kubernetes or to another part", "use a name of your own"
            )


def the_namespace_allows_its_pods_and_no_more(objects: Objects) -> Iterator[Problem]:
    """Pods that the Pod Security level forbids are never made, and only the Job's events say so."""
    for item in of_kind(objects, "Namespace"):
        level = item["metadata"].get("labels", {}).get(ENFORCE)
        key = f"{title(item)}.labels.{ENFORCE}"
        if level not in ("baseline", "privileged"):
            yield Problem(key, level, "the level must be stated", "use baseline, or privileged where pods need it")
            continue
        inside = [body for body in objects if body["metadata"].get("namespace") == item["metadata"]["name"]]
        needs = [need for pod in pods(inside) for need in _beyond_baseline(pod)]
        if needs and level == "baseline":
            yield Problem(key, level, f"baseline forbids {', '.join(sorted(set(needs)))}", "use privileged")
        if not needs and level == "privileged" and any(pods(inside)):
            yield Problem(key, level, "no pod needs more than baseline", "use baseline")


def _beyond_baseline(pod: Pod) -> Iterator[str]:
    yield from (f"hostPath {path}" for path in _host_paths(pod))
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(key))
    for container in pod.containers:
        yield from sorted(set(added_capabilities(container)) - _BASELINE_CAPABILITIES)
        if container.get("securityContext", {}).get("privileged"):
            yield "privileged"


def _host_paths(pod: Pod) -> list[str]:
    return [volume["hostPath"]["path"] for volume in pod.spec.get("volumes", ()) if "hostPath" in volume]


def policies_let_a_job_work(objects: Objects) -> Iterator[Problem]:
    """Pods of one JobSet, and nothing else, come in; out go their own traffic, DNS and HTTPS."""
    for item in of_kind(objects, "JobSet"):
        own = {"matchLabels": {JOBSET_NAME: item["metadata"]["name"]}}
        policies = [p for p in of_kind(objects, "NetworkPolicy") if p["spec"].get("podSelector") == own]
        if not policies:
            why = "without one any pod of the cluster reaches its store, and the namespace lets nobody in"
            yield Problem(f"{title(item)}.NetworkPolicy", None, why, f"add one that selects {JOBSET_NAME}")
        for policy in policies:
            yield from _judge(policy, own)
    for policy in of_kind(objects, "NetworkPolicy"):
        if '"except"' in json.dumps(policy):
            why = "the VPC CNI decides by longest prefix, so it cuts off what other rules allow"
            yield Problem(f"{title(policy)}.except", True, why, "list what is allowed")


def _judge(policy: Object, own: Object) -> Iterator[Problem]:
    spec, key = policy["spec"], title(policy)
    if sorted(spec.get("policyTypes", ())) != ["Egress", "Ingress"]:
        yield Problem(f"{key}.policyTypes", spec.get("policyTypes"), "both directions are judged", "use both")
    # Who else may come in, and where to, is judged in monitoring_rules.py.
    if spec.get("ingress", [])[:1] != [{"from": [{"podSelector": own}]}]:
        yield Problem(f"{key}.ingress", spec.get("ingress"), "the job's own pods come first", "allow them, by labels")
    egress = spec.get("egress", [])
    if {"to": [{"podSelector": own}]} not in egress:
        yield Problem(f"{key}.egress", egress, "the job's own pods must reach one another", "allow it")
    ports = {(port.get("protocol", "TCP"), port["port"]) for rule in egress for port in rule.get("ports", ())}
    for protocol, port in (("UDP", 53), ("TCP", 53), ("TCP", 443)):
        if (protocol, port) not in ports:
            yield Problem(f"{key}.egress", sorted(map(str, ports)), f"{protocol} {port} must be open", "allow it")


def images_are_pinned(objects: Objects) -> Iterator[Problem]:
    """A tag that moves gives a replaced pod other code than its peers. The local default is only warned of."""
    config, default = run_config(objects), RunConfig.model_fields["image"].default
    for where, container in containers(pods(objects)):
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest"):
            yield Problem(f"{where}.image", container["image"], "its version is not stated", "name one")
    if config is None or not config.instance.ec2:
        return
    for image in sorted({container["image"] for _, container in containers(jobset_pods(objects))} - {default}):
        if not _PINNED.fullmatch(image):
            fix = "write <uri>@sha256:<64 hex digits>, as `docker buildx imagetools inspect <uri>` shows it"
            yield Problem("image", image, "its tag can be moved while the run goes on", fix)


def objects_fit_client_side_apply(objects: Objects) -> Iterator[Problem]:
    """CDK's kubectl Lambda and a plain `kubectl apply` keep a copy in an annotation."""
    for item in objects:
        size = len(json.dumps(item))
        if size > APPLY_LIMIT:
            why = f"kubectl apply takes at most {APPLY_LIMIT} bytes"
            yield Problem(title(item), size, why, "install it with Helm or with kubectl apply --server-side")


RULES = (
    tainted_nodes_take_what_belongs_there,
    plugins_stay_on_gpu_nodes,
    pods_select_labels_that_nodes_have,
    the_namespace_is_our_own,
    the_namespace_allows_its_pods_and_no_more,
    policies_let_a_job_work,
    images_are_pinned,
    objects_fit_client_side_apply,
)
