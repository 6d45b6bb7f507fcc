"""The part of a Kubernetes manifest that the local runner acts on, as plain data. Durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Probe:
    """A readiness probe: a command in the pod, or a TCP connection to a port (number or name)."""

    command: tuple[str, ...] | None
    port: int | str | None
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int


@dataclass(frozen=True)
class Variable:
    """An environment variable: a literal value, or a field of the pod."""

    name: str
    value: str
    field_path: str | None


@dataclass(frozen=True)
class Volume:
    """Where files come from. source: claim name, ConfigMap name or host path; empty for an emptyDir."""

    name: str
    kind: Literal["claim", "empty", "memory", "config", "host"]
    source: str


@dataclass(frozen=True)
class Container:
    """The one container of a pod. ports: name (may be empty) and number. mounts: path in the pod and volume name."""

    name: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: tuple[Variable, ...]
    ports: tuple[tuple[str, int], ...]
    mounts: tuple[tuple[str, str], ...]
    readiness: Probe | None

    def port_number(self, port: int | str | None) -> int:
        """A port given by number or by name; 0 if there is no such port."""
        return port if isinstance(port, int) else dict(self.ports).get(port or "", 0)


@dataclass(frozen=True)
class PodTemplate:
    """What a Job makes its pods from."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    grace_period_s: float
    container: Container
    volumes: Mapping[str, Volume]
    gpus: int


@dataclass(frozen=True)
class PodFailureRule:
    """One rule of a Job's podFailurePolicy: by exit codes, or by a condition of the pod."""

    action: Literal["FailJob", "Ignore", "Count"]
    operator: Literal["In", "NotIn"]
    exit_codes: tuple[int, ...]
    condition: str | None


@dataclass(frozen=True)
class JobTemplate:
    """A Job of one pod."""

    backoff_limit: int
    rules: tuple[PodFailureRule, ...]
    pod: PodTemplate


@dataclass(frozen=True)
class ReplicatedJob:
    """`replicas` equal Jobs. depends_on: name of another replicated job and the status it must have reached."""

    name: str
    replicas: int
    depends_on: tuple[tuple[str, Literal["Ready", "Complete"]], ...]
    job: JobTemplate


@dataclass(frozen=True)
class JobFailureRule:
    """One rule of a JobSet's failurePolicy. Empty reasons or targets match any."""

    action: Literal["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    reasons: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class JobSet:
    """The whole workload. max_restarts is 0 without a failurePolicy."""

    name: str
    namespace: str
    subdomain: str
    replicated_jobs: tuple[ReplicatedJob, ...]
    max_restarts: int
    rules: tuple[JobFailureRule, ...]
    success_any: bool
    """Whether one complete Job of the targets is enough."""
    success_targets: tuple[str, ...]

    def host(self, replicated_job: str, index: int) -> str:
        """Host name of the pod of one Job."""
        return f"{self.name}-{replicated_job}-{index}-0"

    @property
    def hosts(self) -> dict[str, ReplicatedJob]:
        """Every host name of the JobSet with the replicated job it belongs to."""
        return {self.host(job.name, index): job for job in self.replicated_jobs for index in range(job.replicas)}


@dataclass(frozen=True)
class DisruptionBudget:
    """At least min_available pods with these labels stay ready through voluntary evictions."""

    name: str
    min_available: int
    labels: Mapping[str, str]
    evict_unready: bool
    """unhealthyPodEvictionPolicy: AlwaysAllow."""


@dataclass(frozen=True)
class Manifest:
    """Everything that was read. ignored: dotted keys that have no meaning on one machine."""

    jobset: JobSet
    config_maps: Mapping[str, Mapping[str, str]]
    budgets: tuple[DisruptionBudget, ...]
    ignored: tuple[str, ...]
