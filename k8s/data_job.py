"""Jobs that prepare data: one per entry of `data.prepare`, each a pod that runs what `holdfast data prepare` runs.

On a system node and before training: no GPU waits for a tokenizer. A pod that is lost is made again and goes on where
the lost one stopped. The token for gated data is read from a Secret by these pods alone.
"""

from __future__ import annotations

import hashlib
import json

from cdk8s import App

from holdfast.config import EXIT_BAD_CONFIG, RunConfig, names
from holdfast.config.data import PREPARE_MEMORY_MIB, PREPARE_MEMORY_PER_WORKER_MIB, Preparation
from k8s.charts import ObjectsChart, rendered
from k8s.placement import SYSTEM_NODES, Manifest
from k8s.pods import labels

TOKEN_KEY = "token"
"""Key in the Secret data.token_secret."""
CONTAINER = "prepare"
RETRIES = 10
"""Pods that may be lost. Each goes on from the pieces that are done."""
LONGEST_S = 7 * 24 * 3600
KEEP_FINISHED_S = 7 * 24 * 3600


def manifests(config: RunConfig) -> dict[str, Manifest]:
    """Stable name -> Job, as cdk8s renders it; empty where nothing is to be prepared."""
    jobs = {f"job-data-{number}": data_job(config, number, one) for number, one in enumerate(config.data.prepare)}
    return rendered([ObjectsChart(App(), "data", jobs)]) if jobs else {}


def data_job(config: RunConfig, number: int, preparation: Preparation) -> Manifest:
    """The Job of one preparation. A changed one has another name, since a Job's template cannot change."""
    spec = _spec(config, preparation)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{config.name}-data-{number}-{digest}"
    spec["template"]["metadata"] = {"labels": {**labels(name), "app.kubernetes.io/component": "data"}}
    metadata = {"name": name, "namespace": config.cluster.namespace, "labels": labels(name)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def command(config: RunConfig, preparation: Preparation) -> list[str]:
    """What the pod runs. Relative paths start at the shared storage, as the trainer's do."""
    words = ["python", "-m", "trainer.data.prepare", preparation.source, "--to", preparation.to]
    words += ["--storage", config.storage.mount_path, "--tokenizer", config.data.tokenizer]
    words += ["--text-key", preparation.text_key, "--workers", str(preparation.workers)]
    words += ["--files", preparation.files] if preparation.files is not None else []
    return words + (["--revision", preparation.revision] if preparation.revision is not None else [])


def _spec(config: RunConfig, preparation: Preparation) -> Manifest:
    bad_input = {"containerName": CONTAINER, "operator": "In", "values": [EXIT_BAD_CONFIG]}
    return {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": RETRIES,
        "activeDeadlineSeconds": LONGEST_S,
        "ttlSecondsAfterFinished": KEEP_FINISHED_S,
        "podReplacementPolicy": "Failed",  # never two pods that write into one folder
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": bad_input}]},
        "template": {"spec": _pod(config, preparation)},
    }


def _pod(config: RunConfig, preparation: Preparation) -> Manifest:
    pod: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": names.SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(config, preparation)],
        "volumes": [
            {"name": "storage", "persistentVolumeClaim": {"claimName": config.storage.claim}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    if config.instance.ec2:
        pod["nodeSelector"] = SYSTEM_NODES
    return pod


def _container(config: RunConfig, preparation: Preparation) -> Manifest:
    memory = f"{PREPARE_MEMORY_MIB + PREPARE_MEMORY_PER_WORKER_MIB * preparation.workers}Mi"
    # Optional: data without a licence needs no Secret. With one that needs it, the pod says that HF_TOKEN is not set.
    secret = {"name": config.data.token_secret, "key": TOKEN_KEY, "optional": True}
    security: Manifest = {"allowPrivilegeEscalation": False}
    if not config.instance.is_cpu:
        security |= {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}}  # as the training pods, whose files lie there
    return {
        "name": CONTAINER,
        "image": config.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command(config, preparation),
        "env": [
            {"name": "HF_HOME", "value": f"{names.SCRATCH_MOUNT}/hf"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}},
        ],
        "resources": {"requests": {"cpu": str(preparation.workers), "memory": memory}, "limits": {"memory": memory}},
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "storage", "mountPath": config.storage.mount_path},
            {"name": "scratch", "mountPath": names.SCRATCH_MOUNT},
        ],
    }
