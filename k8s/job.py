"""The job as cdk8s charts: one JobSet with a control pod and one worker Job per node, its config, and its guards.

Objects are plain dicts; cdk8s gives them a namespace and carries strings that only AWS knows (infra passes tokens).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cdk8s import ApiObject, ApiObjectMetadata, App, Chart, JsonPatch
from constructs import Construct

from holdfast import launch
from holdfast.config import RunConfig, dump, names
from k8s.pods import JOBSET_NAME, PRIORITY_CLASS, REPLICATED_JOB, Manifest, config_name, control_pod, labels, worker_pod

CONTENT_HASH = "holdfast/config-hash"
"""Annotation: SHA-256 of run.yaml."""
NEVER = 2**31 - 1
"""backoffLimit that no pod count reaches."""
KEEP_FINISHED_S = 7 * 24 * 3600


def job_name(config: RunConfig) -> str:
    """Name of the JobSet and stem of its objects: a new one for a changed config, image or pod template."""
    return launch.job_name(config, shape=json.dumps(job_set(config, config.name), sort_keys=True))


class ClusterChart(Chart):
    """Cluster-scoped objects. A chart of its own without a namespace: cdk8s would write one into them."""

    def __init__(self, scope: Construct, chart_id: str) -> None:
        super().__init__(scope, chart_id)
        _add(self, "priorityclass", priority_class())


class JobChart(Chart):
    """Everything of one job that lives in its namespace. `job` names the JobSet: job_name(config)."""

    def __init__(self, scope: Construct, chart_id: str, *, config: RunConfig, job: str) -> None:
        super().__init__(scope, chart_id, namespace=config.cluster.namespace)
        _add(self, "configmap", config_map(config, job))
        # Integers: a Job has no scale subresource, so a percentage or maxUnavailable never lets an eviction through.
        _add(self, "poddisruptionbudget-control", disruption_budget(job, names.CONTROL, keep=1))
        _add(self, "poddisruptionbudget-workers", disruption_budget(job, names.WORKERS, keep=config.pods - 1))
        _add(self, "jobset", job_set(config, job))


def manifests(config: RunConfig) -> dict[str, Manifest]:
    """Stable name -> object, as cdk8s renders them, in the order in which to apply them."""
    app = App()
    charts = (ClusterChart(app, "cluster"), JobChart(app, "job", config=config, job=job_name(config)))
    return {item.node.id: item.to_json() for chart in charts for item in chart.api_objects}


def priority_class() -> Manifest:
    """Above everything without a priority: half a training job cannot run while the other half waits."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS},
        "value": 100_000,
        "preemptionPolicy": "PreemptLowerPriority",
        "globalDefault": False,
        "description": "Holdfast training pods: one that cannot be placed stops all others of its job.",
    }


def config_map(config: RunConfig, job: str) -> Manifest:
    """run.yaml. Immutable: a change is a new job (and a new name), never new input for running pods."""
    text = dump(config)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_name(job), "labels": labels(job), "annotations": {CONTENT_HASH: digest}},
        "immutable": True,
        "data": {names.RUN_YAML: text},
    }


def disruption_budget(job: str, replicated_job: str, *, keep: int) -> Manifest:
    """Voluntary evictions leave at least `keep` pods of one replicated job. Pods that are not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"{job}-{replicated_job}", "labels": labels(job)},
        "spec": {
            "minAvailable": keep,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {JOBSET_NAME: job, REPLICATED_JOB: replicated_job}},
        },
    }


def job_set(config: RunConfig, job: str) -> Manifest:
    """The JobSet. Node loss is cured by the Job controller, a lost store by a JobSet restart (a new generation)."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job, "labels": labels(job)},
        "spec": {
            # Addresses before readiness: workers look the store up while no pod of the job is ready yet.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job},
            # Only control knows whether the run is complete; idle spares and late workers do not count.
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [names.CONTROL]},
            "failurePolicy": _failure_policy(config),
            "ttlSecondsAfterFinished": KEEP_FINISHED_S,
            "replicatedJobs": [_control_job(config, job), _worker_jobs(config, job)],
        },
    }


def _failure_policy(config: RunConfig) -> Manifest:
    return {
        "maxRestarts": config.recovery.max_generations,
        # Not BlockingRecreate: a pod that hangs on an unreachable node would then block the whole restart.
        "restartStrategy": "Recreate",
        "rules": [{"name": "terminal", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }


def _control_job(config: RunConfig, job: str) -> Manifest:
    spec = _one_pod_job(control_pod(config, job), names.CONTROL_CONTAINER)
    # 0: the store's content dies with its pod. A new one needs new workers too, which is a JobSet restart.
    return {"name": names.CONTROL, "replicas": 1, "template": {"spec": spec | {"backoffLimit": 0}}}


def _worker_jobs(config: RunConfig, job: str) -> Manifest:
    spec = _one_pod_job(worker_pod(config, job), names.TRAINER_CONTAINER)
    # A pod lost with its node is no fault of the job. Second rule: the first match decides.
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec["podFailurePolicy"]["rules"].append(evicted)
    return {
        "name": names.WORKERS,
        # One Job per node, not one Job of many pods: a restart deletes Jobs in the foreground, so that an unreachable
        # node holds up its own Job only, and a spare covers it.
        "replicas": config.pods,
        "dependsOn": [{"name": names.CONTROL, "status": "Ready"}],
        # A bad node retries for ever with the Job controller's growing delay, as a missing spare. What repeats by the
        # code's fault ends by the stop rule (exit 93), what repeats for want of nodes by control's generations.
        "template": {"spec": spec | {"backoffLimit": NEVER}},
    }


def _one_pod_job(pod: Manifest, container: str) -> Manifest:
    terminal = {"containerName": container, "operator": "In", "values": list(names.TERMINAL_CODES)}
    return {
        "completionMode": "Indexed",  # gives the pod its stable host name
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",  # never two live pods of one node rank; podFailurePolicy asks for it too
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": terminal}]},
        "template": pod,
    }


def _add(chart: Chart, object_id: str, body: dict[str, Any]) -> None:
    item = ApiObject(
        chart,
        object_id,
        api_version=body["apiVersion"],
        kind=body["kind"],
        metadata=ApiObjectMetadata(**body["metadata"]),
    )
    rest = [key for key in body if key not in ("apiVersion", "kind", "metadata")]
    item.add_json_patch(*(JsonPatch.add(f"/{key}", body[key]) for key in rest))
