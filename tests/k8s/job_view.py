"""The parts of one job's objects, by the names that the tests use."""

from __future__ import annotations

from typing import Any

import yaml

from holdfast.config import RunConfig, names, validate

Object = dict[str, Any]


class Job:
    """One JobSet with its config and budgets."""

    def __init__(self, objects: list[Object]) -> None:
        by_kind: dict[str, list[Object]] = {}
        for item in objects:
            by_kind.setdefault(item["kind"], []).append(item)
        (self.jobset,), (config_map,) = by_kind["JobSet"], by_kind["ConfigMap"]
        self.budgets = {item["metadata"]["name"]: item["spec"] for item in by_kind["PodDisruptionBudget"]}
        self.config_map = config_map
        self.config: RunConfig = validate(yaml.safe_load(config_map["data"]["run.yaml"]), source="run.yaml")
        self.spec = self.jobset["spec"]
        self.name = self.jobset["metadata"]["name"]
        self.control, self.workers = self.spec["replicatedJobs"]

    def pod(self, role: str) -> Object:
        """Pod spec of `control` or `workers`."""
        jobs: Object = self.control if role == names.CONTROL else self.workers
        spec: Object = jobs["template"]["spec"]["template"]["spec"]
        return spec

    def container(self, role: str) -> Object:
        """The one container of a role."""
        (only,) = self.pod(role)["containers"]
        found: Object = only
        return found

    def environment(self, role: str) -> dict[str, Object]:
        """Variable name -> entry."""
        return {entry["name"]: entry for entry in self.container(role)["env"]}

    def volume(self, path: str) -> Object | None:
        """The worker's volume at a path."""
        names_at = [m["name"] for m in self.container(names.WORKERS)["volumeMounts"] if m["mountPath"] == path]
        return next((v for v in self.pod(names.WORKERS)["volumes"] if v["name"] in names_at), None)
