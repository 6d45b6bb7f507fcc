"""Rules of the shared storage: the claim binds to the volume that is meant, and to no other. See rules.py."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config import Problem
from k8s.storage import DRIVER, MOUNT_OPTIONS
from k8s.views import Object, Objects, jobset_pods, of_kind, quantity, title


def claims_bind_to_their_volume(objects: Objects) -> Iterator[Problem]:
    """Otherwise a claim stays Pending, or the default class makes an empty volume and training starts anew on it."""
    volumes = {item["metadata"]["name"]: item for item in of_kind(objects, "PersistentVolume")}
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        spec, key = claim["spec"], title(claim)
        volume = volumes.get(spec.get("volumeName", ""))
        if volume is None:
            fix = f"name one of {sorted(volumes)}"
            yield Problem(f"{key}.volumeName", spec.get("volumeName"), "there is no such volume here", fix)
            continue
        yield from _without_class(claim)
        yield from _shared(claim)
        asked = spec.get("resources", {}).get("requests", {}).get("storage", "0")
        size = volume["spec"].get("capacity", {}).get("storage", "0")
        if quantity(asked) > quantity(size):
            yield Problem(f"{key}.storage", asked, f"its volume has {size}", "ask for no more")
        reserved = volume["spec"].get("claimRef", {})
        meant = {"namespace": claim["metadata"].get("namespace"), "name": claim["metadata"]["name"]}
        if not meant.items() <= reserved.items():
            yield Problem(f"{title(volume)}.claimRef", reserved, "another claim could take it", f"use {meant}")


def volumes_keep_data_and_mount_as_meant(objects: Objects) -> Iterator[Problem]:
    """FSx by its own driver and names; kept when the claim goes; mount options on the volume, where they count."""
    for volume in of_kind(objects, "PersistentVolume"):
        spec, key = volume["spec"], title(volume)
        yield from _without_class(volume)
        yield from _shared(volume)
        if spec.get("persistentVolumeReclaimPolicy") != "Retain":
            got = spec.get("persistentVolumeReclaimPolicy")
            yield Problem(f"{key}.persistentVolumeReclaimPolicy", got, "data goes with the claim", "use Retain")
        if missing := [option for option in MOUNT_OPTIONS if option not in spec.get("mountOptions", ())]:
            got = spec.get("mountOptions")
            yield Problem(f"{key}.mountOptions", got, f"{', '.join(missing)} must be on the volume", "add it")
        csi = spec.get("csi", {})
        attributes = csi.get("volumeAttributes", {})
        values = {"driver": csi.get("driver"), "volumeHandle": csi.get("volumeHandle"), **attributes}
        for field in ("driver", "volumeHandle", "dnsname", "mountname"):
            if not values.get(field):
                yield Problem(
                    f"{key}.csi.{field}", values.get(field), "the driver needs it", "take it from the file system"
                )
        if values["driver"] != DRIVER:
            yield Problem(f"{key}.csi.driver", values["driver"], "FSx for Lustre has its own driver", f"use {DRIVER}")
        if values.get("mountname") == "fsx":
            why = "that is the mount name of SCRATCH_1; others have random ones"
            yield Problem(f"{key}.csi.mountname", "fsx", why, "take it from the file system")


def mounted_claims_exist(objects: Objects) -> Iterator[Problem]:
    """Where the objects bring storage, it is what the pods mount."""
    claims = [item["metadata"]["name"] for item in of_kind(objects, "PersistentVolumeClaim")]
    for pod in jobset_pods(objects):
        for volume in pod.spec.get("volumes", ()):
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claims and name is not None and name not in claims:
                yield Problem(f"{pod.where}.volumes.{volume['name']}", name, "there is no such claim", f"use {claims}")


def _without_class(item: Object) -> Iterator[Problem]:
    name = item["spec"].get("storageClassName")
    if name != "":
        why = "if it is not there and empty, the cluster's default class steps in"
        yield Problem(f"{title(item)}.storageClassName", name, why, 'write ""')


def _shared(item: Object) -> Iterator[Problem]:
    modes = item["spec"].get("accessModes")
    if modes != ["ReadWriteMany"]:
        yield Problem(f"{title(item)}.accessModes", modes, "all nodes mount it", "use [ReadWriteMany]")


RULES = (claims_bind_to_their_volume, volumes_keep_data_and_mount_as_meant, mounted_claims_exist)
