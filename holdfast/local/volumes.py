"""Volumes of a pod as folders of the run. Planning is pure; `create` makes the folders and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.problems import ConfigError, Problem
from holdfast.local.objects import PodTemplate

RESERVED = ("pods", "nodes", "manifest", "run")
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Layout:
    """Where a run keeps things. alias: a short folder in the machine's temporary folder, see `place`."""

    out: Path
    alias: Path

    def claim(self, name: str) -> Path:
        """Shared storage."""
        if name in RESERVED:
            fix = f"choose another name than {', '.join(RESERVED)}"
            raise ConfigError(
                [Problem("persistentVolumeClaim.claimName", name, "the runner keeps its own files there", fix)]
            )
        return self.out / name

    def pod(self, name: str) -> Path:
        """Files that go with the pod."""
        return self.out / "pods" / name

    def node(self, name: str) -> Path:
        """Files that go with the node."""
        return self.out / "nodes" / name

    def log(self, pod: str) -> Path:
        """Output of the pod; kept."""
        return self.out / "pods" / "logs" / f"{pod}.log"


TERMINATION_MESSAGE = "/dev/termination-log"
"""terminationMessagePath, unless a container names another."""


@dataclass(frozen=True)
class Placement:
    """One mount. path: what the pod is given. real: the folder behind it. files: content of a ConfigMap."""

    mount_path: str
    path: Path
    real: Path
    reason: str
    files: Mapping[str, str]


def place(
    template: PodTemplate,
    layout: Layout,
    pod: str,
    number: int,
    node: str,
    config_maps: Mapping[str, Mapping[str, str]],
) -> tuple[Placement, ...]:
    """Where each mount of the pod goes. A memory volume at /dev/shm stays the machine's own and is not in the result.

    number: the pod's number in the run. Pod-local folders are reached through the link <alias>/<number>, since programs
    put unix sockets there, whose paths may have 107 characters only.
    """
    placements = []
    for mount_path, volume_name in template.container.mounts:
        volume = template.volumes[volume_name]
        if volume.kind == "memory" and mount_path == SHARED_MEMORY:
            continue
        if volume.kind == "claim":
            real = path = layout.claim(volume.source)
            reason = f"claim {volume.source} is a folder of the run"
        elif volume.kind == "host":
            real = path = layout.node(node) / volume.source.strip("/")
            reason = f"disk of node {node}"
        else:
            real = layout.pod(pod) / volume.name
            path = layout.alias / str(number) / volume.name
            reason = (
                f"ConfigMap {volume.source}"
                if volume.kind == "config"
                else f"volume {volume.name}, removed with the pod"
            )
        files = config_maps[volume.source] if volume.kind == "config" else {}
        placements.append(Placement(mount_path, path, real, reason, files))
    return tuple(placements)


def last_words(layout: Layout, pod: str) -> Placement:
    """The file that Kubernetes mounts for the reason why a container ended; kept beside the pod's log."""
    path = layout.log(pod).with_suffix(".end")
    return Placement(TERMINATION_MESSAGE, path, path, "the container's last words, kept beside its log", {})


def create(placements: Sequence[Placement], layout: Layout, pod: str, number: int) -> tuple[Path, ...]:
    """Make the folders. Returns what must be removed with the pod."""
    folder, link = layout.pod(pod), layout.alias / str(number)
    for wanted in (folder, layout.log(pod).parent, layout.alias):
        wanted.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder, target_is_directory=True)
    for placement in placements:
        placement.real.mkdir(parents=True, exist_ok=True)
        for name, content in placement.files.items():
            (placement.real / name).write_text(content)
    return (link, folder)
