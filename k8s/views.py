"""Read-only views of plain Kubernetes objects: the pods in them, their containers, quantities, and the run's config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from holdfast.config import RunConfig, names, validate

Object = Mapping[str, Any]
Objects = Sequence[Object]

_UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "m": 1e-3,
}
_TEMPLATED = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod template; `job` is the spec of the Job around it, if there is one."""

    where: str
    spec: Object
    job: Object | None = None

    @property
    def containers(self) -> list[Object]:
        """Init containers and containers."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def volume_at(self, path: str) -> Object | None:
        """The volume that some container mounts at path."""
        mounted = {m["name"] for c in self.containers for m in c.get("volumeMounts", ()) if m["mountPath"] == path}
        return next((volume for volume in self.spec.get("volumes", ()) if volume["name"] in mounted), None)


@dataclass(frozen=True, kw_only=True)
class JobSetPod(Pod):
    """The pod template of a replicated job; the JobSet makes `replicas` Jobs of it."""

    job: Object
    jobset: Object
    role: str
    replicas: int


def title(item: Object) -> str:
    """`Kind/name`."""
    return f"{item['kind']}/{item['metadata']['name']}"


def of_kind(objects: Objects, *kinds: str) -> list[Object]:
    """The objects of some kinds, in order."""
    return [item for item in objects if item["kind"] in kinds]


def pods(objects: Objects) -> Iterator[Pod]:
    """Every pod template in the objects."""
    for item in objects:
        kind, where = item["kind"], title(item)
        if kind == "Pod":
            yield Pod(where=where, spec=item["spec"])
        elif kind in _TEMPLATED:
            job = item["spec"] if kind == "Job" else None
            yield Pod(where=where, spec=item["spec"]["template"]["spec"], job=job)
        elif kind == "JobSet":
            yield from jobset_pods([item])


def jobset_pods(objects: Objects) -> Iterator[JobSetPod]:
    """The pod templates of JobSets only: one for each replicated job."""
    for item in of_kind(objects, "JobSet"):
        for replicated in item["spec"]["replicatedJobs"]:
            job = replicated["template"]["spec"]
            yield JobSetPod(
                where=f"{title(item)}.{replicated['name']}",
                spec=job["template"]["spec"],
                job=job,
                jobset=item,
                role=replicated["name"],
                replicas=replicated["replicas"],
            )


def containers(templates: Iterable[Pod]) -> Iterator[tuple[str, Object]]:
    """(where, container) of every container."""
    for pod in templates:
        for container in pod.containers:
            yield f"{pod.where}.{container['name']}", container


def limits(container: Object) -> Object:
    """resources.limits, or an empty mapping."""
    found: Object = container.get("resources", {}).get("limits", {})
    return found


def requests(container: Object) -> Object:
    """resources.requests, or an empty mapping."""
    found: Object = container.get("resources", {}).get("requests", {})
    return found


def added_capabilities(container: Object) -> list[str]:
    """securityContext.capabilities.add."""
    return list(container.get("securityContext", {}).get("capabilities", {}).get("add", ()))


def quantity(value: str | int | float) -> float:
    """A Kubernetes quantity as a number: `2Gi` is 2147483648, `500m` is 0.5. Raises ValueError if it is none."""
    text = str(value)
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * _UNITS.get(unit, 1)


def run_config(objects: Objects) -> RunConfig | None:
    """The config that the job's ConfigMap carries; None where there is no such ConfigMap. Raises ConfigError."""
    for item in of_kind(objects, "ConfigMap"):
        text = item.get("data", {}).get(names.RUN_YAML)
        if text is not None:
            return validate(yaml.safe_load(text), source=title(item))
    return None


def scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar in nested data with its dotted path; the keys of mappings count as scalars too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{path}.{key}", key
            yield from scalars(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from scalars(inner, f"{path}.{index}")
    else:
        yield path, value
