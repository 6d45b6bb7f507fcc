"""The node's own disk, where a worker has one: what outlives its pod and dies with its node."""

from __future__ import annotations

from holdfast.config import RunConfig, sizing

NVME_ARRAY = "/mnt/k8s-disks/0"
"""Where EKS node set-up (nodeadm, RAID0) mounts the array of local disks."""
HOST_FOLDER = "/var/lib/holdfast"
"""On nodes that are not EC2's. The local runner makes it a folder of the pretended node."""


def host_folder(config: RunConfig) -> str | None:
    """Folder of the node that is mounted at /local (names.LOCAL_MOUNT); None for none."""
    if config.instance.local_nvme:
        return f"{NVME_ARRAY}/holdfast/{config.name}"
    if sizing.has_local_tier(config) and not sizing.local_tier_in_memory(config) and not config.instance.ec2:
        return f"{HOST_FOLDER}/{config.name}"
    return None
