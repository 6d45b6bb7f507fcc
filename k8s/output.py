"""Objects -> YAML files: one per object, stable names, the same bytes every time, no stale file left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.config import ConfigError, Problem

_ORDER = {
    "Namespace": 0, "PriorityClass": 0, "ConfigMap": 1, "NetworkPolicy": 1, "PersistentVolume": 1, "ServiceAccount": 1,
    "StorageClass": 1, "DaemonSet": 2, "Job": 3, "PersistentVolumeClaim": 2, "PodDisruptionBudget": 2, "JobSet": 3,
    "PodMonitor": 1, "PrometheusRule": 1,
}  # fmt: skip
"""First digit of the file name: `kubectl apply -f <folder>` goes by name, and pods need the objects before them."""


class _Dumper(yaml.SafeDumper):
    """Block text for multi-line strings, and no text that another YAML reader takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated parts out: people read these files."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    if "\n" in text:
        return "|"
    try:
        float(text)  # PyYAML leaves 1e3 bare; kubectl's reader makes it a number
    except ValueError:
        return None
    return '"'


_Dumper.add_representer(str, _represent_text)


def render(item: Mapping[str, Any]) -> str:
    """One object as YAML. Keys keep their order; cdk8s has sorted them."""
    return yaml.dump(dict(item), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write(objects: Mapping[str, Mapping[str, Any]], folder: Path, readme: str = "") -> list[Path]:
    """Write `<order>-<name>.yaml` for each name -> object and remove other YAML files from the folder.

    readme: text of a README.md beside them. Returns the paths in order. Raises ConfigError if the folder cannot be
    written.
    """
    texts = {folder / f"{_ORDER[item['kind']]}0-{name}.yaml": render(item) for name, item in objects.items()}
    texts |= {folder / "README.md": readme} if readme else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            # Renamed into place, so that a reader beside us never sees half a file.
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(text)
            part.replace(path)
        for stale in set(folder.glob("*.yaml")) - set(texts):
            stale.unlink()
    except OSError as error:
        why, fix = f"{error.strerror}: {error.filename}", "set HOLDFAST_DIST to a folder that can be written"
        raise ConfigError([Problem("output", str(folder), why, fix)], source="synthesis") from None
    return sorted(texts)
