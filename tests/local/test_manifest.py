"""Manifests are read strictly: what would change the run and is not understood is refused, never skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import load_profile, profile_names
from holdfast.config.problems import ConfigError
from holdfast.local.manifest import load_manifest, read_documents
from k8s.job import manifests
from tests.local.toys import Document, budget, job, jobset

BASE = jobset(job("control", "exit 0"), job("workers", "exit 0", replicas=2, backoff_limit=5, depends_on="control"))


def changed(change: Callable[[Any, Any], object]) -> Document:
    """The base with one change: to (job spec, pod spec) of the workers."""
    document = copy.deepcopy(BASE)
    spec = document["spec"]["replicatedJobs"][1]["template"]["spec"]
    change(spec, spec["template"]["spec"])
    return document


def refusal(*documents: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_documents(documents)
    return str(caught.value)


def test_what_our_manifests_use_is_read() -> None:
    manifest = read_documents([BASE, budget("workers", 1), {"kind": "PriorityClass", "metadata": {"name": "x"}}])
    control, workers = manifest.jobset.replicated_jobs
    assert (workers.replicas, workers.depends_on) == (2, (("control", "Ready"),))
    assert (control.job.backoff_limit, workers.job.backoff_limit) == (0, 5)
    assert workers.job.rules[0].exit_codes == (78, 93)
    assert workers.job.rules[1].condition == "DisruptionTarget"
    assert manifest.jobset.success_targets == ("control",)
    assert list(manifest.jobset.hosts) == ["toy-control-0-0", "toy-workers-0-0", "toy-workers-1-0"]
    assert manifest.budgets[0].min_available == 1 and manifest.budgets[0].evict_unready


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda spec, pod: spec.update(completions=2), "completions = 2"),
        (lambda spec, pod: spec.update(activeDeadlineSeconds=5), "activeDeadlineSeconds = 5"),
        (lambda spec, pod: spec.update(backoffLimit="many"), "backoffLimit = 'many'"),
        (lambda spec, pod: spec.update(podReplacementPolicy="TerminatingOrFailed"), "podReplacementPolicy"),
        (lambda spec, pod: pod.update(initContainers=[{}]), "initContainers"),
        (lambda spec, pod: pod.update(restartPolicy="OnFailure"), "restartPolicy = 'OnFailure'"),
        (lambda spec, pod: pod["containers"].append({"name": "second", "command": ["x"]}), "containers = 2"),
        (lambda spec, pod: pod["containers"][0].update(livenessProbe={}), "livenessProbe"),
        (lambda spec, pod: pod["containers"][0].update(lifecycle={"preStop": {}}), "lifecycle"),
        (lambda spec, pod: pod["containers"][0].pop("command"), "command"),
        (lambda spec, pod: pod["containers"][0].update(env=[{"name": "A", "valueFrom": {"x": 1}}]), "valueFrom.x"),
        (
            lambda spec, pod: pod["containers"][0].update(
                env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.magic"}}}]
            ),
            "spec.magic",
        ),
        (lambda spec, pod: pod["containers"][0].update(readinessProbe={"httpGet": {}}), "readinessProbe"),
        (
            lambda spec, pod: pod["containers"][0].update(volumeMounts=[{"name": "gone", "mountPath": "/x"}]),
            "'gone': the pod has no such volume",
        ),
        (lambda spec, pod: pod.update(volumes=[{"name": "v", "nfs": {}}]), "nfs"),
        (lambda spec, pod: pod.update(volumes=[{"name": "v", "configMap": {"name": "none"}}]), "no such ConfigMap"),
        (lambda spec, pod: spec["podFailurePolicy"]["rules"][0].update(action="Explode"), "action = 'Explode'"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_key(change: Callable[[Any, Any], object], key: str) -> None:
    assert key in refusal(changed(change))


def test_every_problem_is_named_at_once() -> None:
    message = refusal(changed(lambda spec, pod: (spec.update(suspend=True), pod.update(initContainers=[1]))))
    assert "2 problems" in message and "suspend" in message and "initContainers" in message


def test_no_or_two_jobsets_and_unknown_kinds_are_refused() -> None:
    assert "exactly one JobSet" in refusal()
    assert "exactly one JobSet" in refusal(BASE, BASE)
    assert "kind = 'Deployment'" in refusal(BASE, {"kind": "Deployment"})
    assert "not a mapping" in refusal(BASE, "text")


def test_a_dependency_or_success_target_that_does_not_exist_is_refused() -> None:
    assert "no replicated job before it" in refusal(jobset(job("control", "x", depends_on="workers")))
    assert "there is no such replicated job" in refusal(jobset(job("workers", "x")))


def test_placement_and_security_are_listed_as_not_applied() -> None:
    manifest = read_documents([changed(lambda spec, pod: pod.update(tolerations=[], nodeSelector={"a": "b"}))])
    assert any(key.endswith("nodeSelector") for key in manifest.ignored)
    assert any(key.endswith("tolerations") for key in manifest.ignored)


@pytest.mark.parametrize("profile", profile_names())
def test_the_job_of_every_profile_is_understood(profile: str) -> None:
    config = load_profile(profile)
    jobset = read_documents(list(manifests(config).values())).jobset
    workers = jobset.replicated_jobs[1]
    assert workers.replicas == config.pods
    assert workers.job.pod.gpus == (config.cluster.ranks_per_node if config.device == "cuda" else 0)


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    for name in ("bad.yaml", "missing.yaml"):
        with pytest.raises(ConfigError, match=name):
            load_manifest([tmp_path / name])
