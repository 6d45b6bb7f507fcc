"""The job: one JobSet with a control pod and one worker Job per node, its config, and its guards.

Nothing in it comes from AWS: the claim, the namespace and the service account have constant names, so that a job can be
synthesized anywhere. It never goes through CloudFormation either, where a stack update could restart a run.
"""

from __future__ import annotations

import hashlib
import json

from cdk8s import App

from holdfast import launch
from holdfast.config import RunConfig, dump, names
from k8s.charts import ObjectsChart, rendered
from k8s.monitoring import monitoring_objects
from k8s.network import job_traffic
from k8s.placement import Manifest
from k8s.pods import JOBSET_NAME, REPLICATED_JOB, config_name, control_pod, labels, worker_pod

CONTENT_HASH = "holdfast/config-hash"
"""Annotation: SHA-256 of run.yaml."""
NEVER = 2**31 - 1
"""backoffLimit that no pod count reaches."""
KEEP_FINISHED_S = 7 * 24 * 3600


def job_name(config: RunConfig) -> str:
    """Name of the JobSet and stem of its objects: a new one for a changed config, image or pod template."""
    return launch.job_name(config, shape=json.dumps(job_set(config, config.name), sort_keys=True))


def manifests(config: RunConfig) -> dict[str, Manifest]:
    """Stable name -> object, as cdk8s renders them, in the order in which to apply them."""
    job = job_name(config)
    objects = {
        "configmap": config_map(config, job),
        "networkpolicy": job_traffic(config, job),
        **monitoring_objects(config, job),
        # Integers: a Job has no scale subresource, so a percentage or maxUnavailable never lets an eviction through.
        "poddisruptionbudget-control": disruption_budget(config, job, names.CONTROL, keep=1),
        "poddisruptionbudget-workers": disruption_budget(config, job, names.WORKERS, keep=config.pods - 1),
        "jobset": job_set(config, job),
    }
    return rendered([ObjectsChart(App(), "job", objects)])


def config_map(config: RunConfig, job: str) -> Manifest:
    """run.yaml. Immutable: a change is a new job (and a new name), never new input for running pods."""
    text = dump(config)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**_metadata(config, job, config_name(job)), "annotations": {CONTENT_HASH: digest}},
        "immutable": True,
        "data": {names.RUN_YAML: text},
    }


def disruption_budget(config: RunConfig, job: str, replicated_job: str, *, keep: int) -> Manifest:
    """Voluntary evictions leave at least `keep` pods of one replicated job. Pods that are not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(config, job, f"{job}-{replicated_job}"),
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
        "metadata": _metadata(config, job, job),
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


def _metadata(config: RunConfig, job: str, name: str) -> Manifest:
    return {"name": name, "namespace": config.cluster.namespace, "labels": labels(job)}
