"""The platform as cdk8s charts: everything that a job expects of its cluster, once per cluster.

Two entry points use this: app.py with CDK tokens (`cdk deploy`), k8s/main.py with the values in cdk-outputs.json.
Charts take plain strings, so both give the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdk8s import App, Chart

from holdfast.config import ConfigError, RunConfig
from k8s import rules
from k8s.charts import ObjectsChart, rendered
from k8s.controller import jobset_release
from k8s.network import closed_namespace
from k8s.placement import Manifest
from k8s.plugins import efa_plugin, nvidia_plugin
from k8s.registries import eks_registry
from k8s.space import namespace, priority_class, service_account
from k8s.storage import DynamicStorage, FileSystem, persistent_volume, persistent_volume_claim, storage_class

__all__ = ["DynamicStorage", "FileSystem", "helm_releases", "manifests", "platform_charts"]


def platform_charts(
    config: RunConfig,
    *,
    file_system: FileSystem | None,
    image_registry: str | None = None,
    dynamic_storage: DynamicStorage | None = None,
) -> dict[str, Chart]:
    """Name -> chart, in the order in which to apply them; a later one may need an earlier one.

    priority, space; on EC2 types also plugins, and storage if there is a file_system. image_registry: host name of the
    EKS images, by default that of aws.region. Raises ConfigError for a region whose registry is not known.
    """
    app = App()
    objects: dict[str, dict[str, Manifest]] = {
        "priority": {"priorityclass": priority_class()},
        "space": {
            "namespace": namespace(config),
            "serviceaccount": service_account(config),
            "networkpolicy": closed_namespace(config),
        },
    }
    if config.instance.ec2:
        objects["plugins"] = {"nvidia-device-plugin": nvidia_plugin()}
        if config.instance.efa:
            registry = image_registry or eks_registry(config.aws.region)
            objects["plugins"]["efa-device-plugin"] = efa_plugin(registry)
        storage = _storage(config, file_system, dynamic_storage)
        objects |= {"storage": storage} if storage else {}
    return {name: ObjectsChart(app, name, items) for name, items in objects.items()}


def _storage(
    config: RunConfig, file_system: FileSystem | None, dynamic_storage: DynamicStorage | None
) -> dict[str, Manifest]:
    objects = {}
    if file_system is not None:
        objects["persistentvolume"] = persistent_volume(config, file_system)
        objects["persistentvolumeclaim"] = persistent_volume_claim(config)
    if dynamic_storage is not None:
        objects["storageclass"] = storage_class(config, dynamic_storage)
    return objects


def manifests(charts: Mapping[str, Chart]) -> dict[str, list[Manifest]]:
    """Chart name -> its objects, for CDK: tokens are legal. Raises ConfigError where an object breaks a rule."""
    made = {name: list(rendered([chart]).values()) for name, chart in charts.items()}
    if problems := rules.check([item for objects in made.values() for item in objects], tokens=True):
        raise ConfigError(problems, source="platform")
    return made


def helm_releases(config: RunConfig) -> list[dict[str, Any]]:
    """What Helm installs, as arguments of eks.HelmChart (all but scope, id and cluster)."""
    return [jobset_release(config)]
