"""Every object is valid for Kubernetes 1.35, and the JobSet for its own API, unknown fields refused."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models import JobsetV1alpha2JobSetSpec

from holdfast.config import profile_names

KUBERNETES = "1.35"
ENUMS = {
    "operator": {"All", "Any"},
    "restartStrategy": {"Recreate", "BlockingRecreate"},
    "action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
    "status": {"Ready", "Complete"},
}
"""Fields of the JobSet API with fixed values; the models take any text."""
REASONS = {
    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy",
}  # fmt: skip


def jobset_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (jobset,) = (item for item in objects if item["kind"] == "JobSet")
    return jobset


def jobset_spec_without_jobs(jobset: dict[str, Any]) -> dict[str, Any]:
    """The JobSet's own fields. The models cannot read quantities, so the Jobs in it are checked apart."""
    spec: dict[str, Any] = copy.deepcopy(jobset["spec"])
    for replicated in spec["replicatedJobs"]:
        replicated["template"] = {}
    return spec


def jobset_differences(spec: dict[str, Any]) -> list[str]:
    """What the JobSet API does not know, or knows otherwise."""
    known = JobsetV1alpha2JobSetSpec.from_dict(copy.deepcopy(spec)).to_dict()
    found = [] if known == spec else [f"{spec} is read as {known}"]
    found += [f"{key}: {value}" for key, value in _pairs(spec) if key in ENUMS and value not in ENUMS[key]]
    reasons = [value for key, value in _pairs(spec) if key == "onJobFailureReasons"]
    return found + [f"reason {reason}" for listed in reasons for reason in listed if reason not in REASONS]


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [*value.items(), *(pair for inner in value.values() for pair in _pairs(inner))]
    return [pair for inner in value for pair in _pairs(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("profile", profile_names())
def test_every_object_but_the_jobset_is_valid_kubernetes(synthesized: dict[str, Any], profile: str) -> None:
    kinds = []
    for item in synthesized[profile].job_objects:
        if item["kind"] != "JobSet":
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
            kinds.append(item["kind"])
    assert sorted(kinds) == ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PodDisruptionBudget"]


@pytest.mark.parametrize("profile", profile_names())
def test_every_object_of_the_platform_is_valid_kubernetes(synthesized: dict[str, Any], profile: str) -> None:
    objects = synthesized[profile].platform_objects
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    assert {"Namespace", "NetworkPolicy", "PriorityClass", "ServiceAccount"} <= {item["kind"] for item in objects}


@pytest.mark.parametrize("profile", profile_names())
def test_every_job_of_the_jobset_is_a_valid_job(synthesized: dict[str, Any], profile: str) -> None:
    for replicated in jobset_of(synthesized[profile].objects)["spec"]["replicatedJobs"]:
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job"},
            "spec": replicated["template"]["spec"],
        }
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


@pytest.mark.parametrize("profile", profile_names())
def test_the_jobset_has_only_fields_and_values_that_its_api_knows(synthesized: dict[str, Any], profile: str) -> None:
    jobset = jobset_of(synthesized[profile].objects)
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert set(jobset) == {"apiVersion", "kind", "metadata", "spec"}
    assert jobset_differences(jobset_spec_without_jobs(jobset)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "failurePolicy", "maxRestart"), 3),
        (("spec", "network", "publishNotReady"), True),
        (("spec", "failurePolicy", "restartStrategy"), "Recreat"),
        (("spec", "successPolicy", "operator"), "Some"),
        (("spec", "replicatedJobs", 1, "dependsOn"), [{"name": "control", "status": "Up"}]),
        (("spec", "failurePolicy", "rules"), [{"name": "a", "action": "FailJobSet", "onJobFailureReasons": ["Oops"]}]),
    ],
)
def test_a_wrong_field_or_value_in_the_jobset_is_found(
    synthesized: dict[str, Any], path: tuple[str | int, ...], value: Any
) -> None:
    jobset = jobset_of(synthesized["cpu-demo"].objects)
    target: Any = jobset
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    assert jobset_differences(jobset_spec_without_jobs(jobset))


def test_a_wrong_field_in_a_pod_is_found(synthesized: dict[str, Any]) -> None:
    spec = jobset_of(synthesized["cpu-demo"].objects)["spec"]["replicatedJobs"][1]["template"]["spec"]
    spec["template"]["spec"]["terminationGracePeriod"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec},
            KUBERNETES,
            strict=True,
        )


@pytest.mark.parametrize("profile", profile_names())
def test_dependencies_between_jobs_do_not_meet_a_startup_policy(synthesized: dict[str, Any], profile: str) -> None:
    # The webhook refuses both at once, and a dependency of the first job.
    spec = jobset_of(synthesized[profile].objects)["spec"]
    assert "startupPolicy" not in spec
    assert "dependsOn" not in spec["replicatedJobs"][0]
    assert spec["replicatedJobs"][1]["dependsOn"] == [{"name": "control", "status": "Ready"}]
