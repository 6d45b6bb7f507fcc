"""The shared file system as Kubernetes sees it: a static volume and its claim. FSx itself is made by infra."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config import RunConfig
from k8s.placement import Manifest

DRIVER = "fsx.csi.aws.com"
MOUNT_OPTIONS = ["flock", "noatime"]
"""flock: file locks hold across nodes. noatime: a read is no write on the metadata server."""
STORAGE_CLASS = "fsx-lustre"
CLAIM_GIB = 1200
"""Size that volume and claim state, whatever the file system's: the smallest there is. Nothing enforces it. The claim
of a static volume cannot be raised (Kubernetes: "only dynamically provisioned pvc can be resized"), but the file system
can be grown."""


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """A file system that exists, or CDK tokens for one that will."""

    id: str
    """`fs-0123456789abcdef0`."""
    dns_name: str
    mount_name: str
    """Random for SCRATCH_2 and PERSISTENT_2; never guess it."""


@dataclass(frozen=True, kw_only=True)
class DynamicStorage:
    """Where volumes of the optional storage class are made."""

    subnet_id: str
    security_group_id: str


def volume_name(config: RunConfig) -> str:
    """Name of the PersistentVolume, which is cluster-scoped. Stable: another file system is a refused change, not a
    second volume."""
    return f"{config.cluster.namespace}-{config.storage.claim}"


def persistent_volume(config: RunConfig, file_system: FileSystem) -> Manifest:
    """The volume, reserved for the claim. Deleting it never deletes data."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(config), "labels": {"app.kubernetes.io/part-of": "holdfast"}},
        "spec": {
            "capacity": {"storage": f"{CLAIM_GIB}Gi"},
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",  # on both sides, or the cluster's default class makes a volume of its own
            "mountOptions": MOUNT_OPTIONS,  # here, not on a class: a static volume takes none from it
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": config.cluster.namespace,
                "name": config.storage.claim,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": file_system.id,
                "volumeAttributes": {"dnsname": file_system.dns_name, "mountname": file_system.mount_name},
            },
        },
    }


def persistent_volume_claim(config: RunConfig) -> Manifest:
    """What the pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": config.storage.claim,
            "namespace": config.cluster.namespace,
            "labels": {"app.kubernetes.io/part-of": "holdfast"},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": volume_name(config),
            "resources": {"requests": {"storage": f"{CLAIM_GIB}Gi"}},
        },
    }


def storage_class(config: RunConfig, where: DynamicStorage) -> Manifest:
    """A class for further volumes, for those who ask for it by name.

    Not for the run itself: each claim makes a file system of its own that costs money, that CloudFormation does not
    know, and that stays when the claim goes.
    """
    parameters = {
        "subnetId": where.subnet_id,
        "securityGroupIds": where.security_group_id,
        "deploymentType": config.storage.deployment_type,
        "fileSystemTypeVersion": "2.15",  # without it 2.10, which AL2023 cannot mount
        "storageType": "SSD",
        "dataCompressionType": config.storage.fsx.compression,
    }
    if config.storage.throughput_mbps_per_tib is not None:
        parameters["perUnitStorageThroughput"] = str(config.storage.throughput_mbps_per_tib)
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "labels": {"app.kubernetes.io/part-of": "holdfast"}},
        "provisioner": DRIVER,
        "parameters": parameters,
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
        "mountOptions": MOUNT_OPTIONS,
    }
