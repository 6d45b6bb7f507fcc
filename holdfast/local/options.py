"""What of the local runner can be set, and how it differs from a cluster, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.local.objects import Manifest

_TEMPLATE = re.compile(r"JobSet\.spec\.replicatedJobs\.\d+\.template\.spec\.template\.")


@dataclass(frozen=True)
class RunnerOptions:
    """Delays are shorter than Kubernetes' own, so that a demonstration does not consist of waiting."""

    back_off_s: float = 0.5
    """Delay of the next pod after the first counted failure of a Job; doubles with each. Kubernetes: 10 s."""
    back_off_limit_s: float = 30.0
    """Longest such delay. Kubernetes: 600 s."""
    replace_lost_nodes_after_s: float | None = 2.0
    """A lost node is replaced after so long. None: never."""
    probe_period_s: float = 0.25
    """Longest time between two probes of a pod that is not ready yet. Kubernetes: periodSeconds."""
    port: int | None = None
    """The port of this machine for the first container port of the manifest. None: any free one."""
    limit_s: float | None = None
    """Give up after so long. None: the JobSet's own limits only."""


def differences(manifest: Manifest, options: RunnerOptions) -> list[str]:
    """How this run differs from the same manifest on a cluster, apart from the rewrites of each pod."""
    replaced = options.replace_lost_nodes_after_s
    lines = [
        f"a failed pod comes back after {options.back_off_s:g} s, doubling up to {options.back_off_limit_s:g} s"
        " (Kubernetes: 10 s to 600 s)",
        f"a pod that is not ready yet is probed every {options.probe_period_s:g} s, or its periodSeconds if shorter",
        "a lost node is never replaced" if replaced is None else f"a lost node is replaced after {replaced:g} s",
        "each replicated job has as many nodes as replicas, and each node takes one pod",
        "a pod is a process tree: no namespaces, no cgroup limits; its image is this interpreter",
        "SIGTERM ends a command that has no handler for it; in a container PID 1 would ignore it",
    ]
    if any(
        volume.kind == "memory" for job in manifest.jobset.replicated_jobs for volume in job.job.pod.volumes.values()
    ):
        lines.append("/dev/shm is this machine's own: not limited, and not emptied when a pod ends")
    ignored = dict.fromkeys(_TEMPLATE.sub("pod ", key) for key in manifest.ignored)
    return lines + [f"not applied: {key}" for key in ignored]
