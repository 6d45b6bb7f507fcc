"""Synthesized YAML -> Manifest. What would change the run and is not understood here is refused, never skipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from holdfast.config.problems import ConfigError, Problem
from holdfast.local.fields import Fields, Findings
from holdfast.local.objects import (
    DisruptionBudget,
    JobFailureRule,
    JobSet,
    JobTemplate,
    Manifest,
    PodFailureRule,
    ReplicatedJob,
)
from holdfast.local.pod_template import read_pod

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_METADATA = {"annotations", "labels", "namespace", "creationTimestamp"}
_HARMLESS_KINDS = {
    "Namespace", "NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "PodMonitor", "PriorityClass",
    "PrometheusRule", "Service", "ServiceAccount", "StorageClass",
}  # fmt: skip
FOREVER = 2**31 - 1


def load_manifest(paths: Sequence[Path]) -> Manifest:
    """Read the files, which together hold exactly one JobSet. Raises ConfigError naming every problem."""
    return read_documents([document for path in paths for document in _documents(path)], ", ".join(map(str, paths)))


def read_documents(documents: Sequence[Any], source: str = "manifest") -> Manifest:
    """The Manifest in already loaded YAML documents. Raises ConfigError."""
    findings = Findings()
    jobsets: list[JobSet] = []
    config_maps: dict[str, dict[str, str]] = {}
    budgets: list[DisruptionBudget] = []
    for document in documents:
        kind = str(document.get("kind")) if isinstance(document, dict) else str(document)
        fields = Fields(kind, document, findings)
        fields.take("kind", str, "")
        if kind == "JobSet":
            jobsets.append(_jobset(fields))
        elif kind == "ConfigMap":
            config_maps[fields.section("metadata").take("name", str, "")] = fields.mapping("data")
        elif kind == "PodDisruptionBudget":
            budgets.append(_budget(fields))
        elif kind in _HARMLESS_KINDS:
            findings.ignored.append(kind)
        else:
            findings.unsupported("kind", kind)
    if len(jobsets) != 1:
        findings.problems.append(
            Problem("kind: JobSet", len(jobsets), "exactly one JobSet is needed", "pass the files of one job")
        )
    if not findings.problems:
        _check_references(jobsets[0], config_maps, findings)
    if findings.problems:
        raise ConfigError(findings.problems, source)
    return Manifest(jobsets[0], config_maps, tuple(budgets), tuple(dict.fromkeys(findings.ignored)))


def _documents(path: Path) -> list[Any]:
    try:
        return [document for document in yaml.load_all(path.read_text(), Loader=_Loader) if document is not None]
    except OSError as error:
        raise ConfigError([Problem("manifest", str(path), str(error.strerror), "give a readable file")]) from None
    except yaml.YAMLError as error:
        why = f"it is not YAML ({' '.join(str(error).split())})"
        raise ConfigError([Problem("manifest", str(path), why, "correct the file")]) from None


def _jobset(fields: Fields) -> JobSet:
    fields.expect("apiVersion", "jobset.x-k8s.io/v1alpha2")
    metadata, spec = fields.section("metadata"), fields.section("spec")
    name = metadata.take("name", str, "")
    network, success, failure = (spec.section(key) for key in ("network", "successPolicy", "failurePolicy"))
    failure.expect("restartStrategy", "Recreate")
    jobset = JobSet(
        name=name,
        namespace=metadata.take("namespace", str, "default"),
        subdomain=network.take("subdomain", str, name),
        replicated_jobs=tuple(_replicated_job(job) for job in spec.sections("replicatedJobs")),
        max_restarts=failure.take("maxRestarts", int, 0),
        rules=tuple(_job_failure_rule(rule) for rule in failure.sections("rules")),
        success_any=_choice(success, "operator", ("All", "Any"), "All") == "Any",
        success_targets=success.strings("targetReplicatedJobs"),
    )
    network.done({"enableDNSHostnames", "publishNotReadyAddresses"})
    success.done()
    failure.done()
    metadata.done(_METADATA)
    spec.done({"ttlSecondsAfterFinished", "managedBy"})
    fields.done({"status"})
    return jobset


def _choice(fields: Fields, key: str, allowed: Sequence[str], default: str) -> Any:
    value = fields.take(key, str, default)
    if value not in allowed:
        fields.findings.unsupported(f"{fields.where}.{key}", value, f"the local runner knows {', '.join(allowed)}")
        return allowed[0]
    return value


def _job_failure_rule(fields: Fields) -> JobFailureRule:
    actions = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
    rule = JobFailureRule(
        action=_choice(fields, "action", actions, ""),
        reasons=fields.strings("onJobFailureReasons"),
        targets=fields.strings("targetReplicatedJobs"),
    )
    fields.done({"name"})
    return rule


def _replicated_job(fields: Fields) -> ReplicatedJob:
    depends_on: list[tuple[str, Literal["Ready", "Complete"]]] = []
    for dependency in fields.sections("dependsOn"):
        depends_on.append((dependency.take("name", str, ""), _choice(dependency, "status", ("Ready", "Complete"), "")))
        dependency.done()
    template = fields.section("template")
    job = ReplicatedJob(
        name=fields.take("name", str, ""),
        replicas=fields.take("replicas", int, 1),
        depends_on=tuple(depends_on),
        job=_job(template.section("spec"), template),
    )
    template.section("metadata").done(_METADATA)
    template.done()
    fields.done({"groupName"})
    return job


def _job(spec: Fields, template: Fields) -> JobTemplate:
    policy = spec.section("podFailurePolicy")
    rules = tuple(rule for fields in policy.sections("rules") for rule in _pod_failure_rules(fields))
    policy.done()
    for key in ("completions", "parallelism"):
        spec.expect(key, 1)
    spec.expect("completionMode", "Indexed")
    spec.expect("podReplacementPolicy", "Failed")
    spec.expect("suspend", False)
    job = JobTemplate(
        backoff_limit=spec.take("backoffLimit", int, 6), rules=rules, pod=read_pod(spec.section("template"))
    )
    spec.done({"ttlSecondsAfterFinished"})
    return job


def _pod_failure_rules(fields: Fields) -> list[PodFailureRule]:
    action = _choice(fields, "action", ("FailJob", "Ignore", "Count"), "")
    rules = []
    if "onExitCodes" in fields:
        codes = fields.section("onExitCodes")
        operator = _choice(codes, "operator", ("In", "NotIn"), "")
        values = tuple(int(value) for value in codes.items("values"))
        codes.take("containerName", str, "")  # there is only one container
        codes.done()
        rules.append(PodFailureRule(action, operator, values, None))
    for condition in fields.sections("onPodConditions"):
        condition.expect("status", "True")
        rules.append(PodFailureRule(action, "In", (), condition.take("type", str, "")))
        condition.done()
    fields.done()
    return rules


def _budget(fields: Fields) -> DisruptionBudget:
    metadata, spec = fields.section("metadata"), fields.section("spec")
    selector = spec.section("selector")
    budget = DisruptionBudget(
        name=metadata.take("name", str, ""),
        min_available=spec.take("minAvailable", int, 0),
        labels=selector.mapping("matchLabels"),
        evict_unready=_choice(spec, "unhealthyPodEvictionPolicy", ("IfHealthyBudget", "AlwaysAllow"), "IfHealthyBudget")
        == "AlwaysAllow",
    )
    selector.done()
    spec.done()
    return budget


def _check_references(jobset: JobSet, config_maps: dict[str, dict[str, str]], findings: Findings) -> None:
    names = [job.name for job in jobset.replicated_jobs]
    for job in jobset.replicated_jobs:
        for target, _ in job.depends_on:
            if target not in names[: names.index(job.name)]:
                why = "no replicated job before it has this name"
                findings.problems.append(Problem(f"{job.name}.dependsOn", target, why, "name an earlier one"))
        for volume in job.job.pod.volumes.values():
            if volume.kind == "config" and volume.source not in config_maps:
                why = "no such ConfigMap is in the manifest"
                findings.problems.append(Problem(f"{job.name}.volumes.{volume.name}", volume.source, why, "add it"))
    for target in jobset.success_targets:
        if target not in names:
            why = "there is no such replicated job"
            findings.problems.append(Problem("successPolicy.targetReplicatedJobs", target, why, f"use one of {names}"))
