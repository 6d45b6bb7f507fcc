"""Rules about Kubernetes objects that CloudFormation applies, and about text that must not reach any template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config import names
from infra.rules.assembly import (
    ACCESS_ENTRY,
    ADD_ON,
    FILE_SYSTEM,
    MANIFEST,
    Assembly,
    Resource,
    objects_of,
    text_of,
)
from infra.rules.nodes import node_groups
from infra.rules.rule import Finding, Rule

SIZE_LIMIT = 250_000
"""Bytes. Client-side apply stores the object in an annotation of at most 262,144."""
_NUMBER_TOKEN = re.compile(r"-\d(?:\.\d+)?e\+?[23]\d\d", re.IGNORECASE)
_RUNS = ("JobSet", "Job", "CronJob", "TrainJob")


def manifests_are_small(assembly: Assembly) -> Iterator[Finding]:
    """Below the limit of client-side apply."""
    for manifest in assembly.of(MANIFEST):
        size = len(text_of(manifest.properties.get("Manifest", "")).encode())
        if size > SIZE_LIMIT:
            yield Finding(
                resource=manifest,
                wrong=f"its text has {size:,} bytes",
                why="the kubectl Lambda applies on the client side, which fails above 262,144 bytes",
                write="several smaller manifests; large CRDs by `kubectl apply --server-side`",
            )


def no_token_is_left(assembly: Assembly) -> Iterator[Finding]:
    """No `${Token[` and no number that stands for one."""
    for resource in assembly.resources.values():
        leaks = [text for text in _leaks(resource.body.get("Properties")) if text]
        if leaks:
            yield Finding(
                resource=resource,
                wrong=f"it contains an unresolved CDK token: {leaks[0][:80]}",
                why="a token was made into text or a number outside of its stack; AWS would get this very text",
                write="pass the value itself (a plain str for a chart), and let the stack resolve it",
            )


def _leaks(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if "${Token[" in value:
            yield value[value.index("${Token[") :]
        elif found := _NUMBER_TOKEN.search(value):
            yield found[0]
    elif isinstance(value, float) and value < -1e200:
        yield repr(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaks(key)
            yield from _leaks(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaks(inner)


def daemons_tolerate_their_nodes(assembly: Assembly) -> Iterator[Finding]:
    """A DaemonSet that selects a node group tolerates its taints; the start-up taint goes away by itself."""
    for manifest in assembly.of(MANIFEST):
        for daemon in (entry for entry in objects_of(manifest) if entry.get("kind") == "DaemonSet"):
            pod = daemon.get("spec", {}).get("template", {}).get("spec", {})
            for group in node_groups(assembly):
                properties = group.group.properties
                if not _selects(pod, properties.get("Labels") or {}):
                    continue
                for taint in properties.get("Taints") or []:
                    if taint.get("Key") != names.STORAGE_TAINT and not _tolerates(pod, taint):
                        yield Finding(
                            resource=manifest,
                            wrong=f"DaemonSet {daemon['metadata']['name']} does not tolerate {taint.get('Key')}",
                            why=f"it never runs on {group.group.path}, so its devices are never offered to pods",
                            write=f"tolerations: [{{key: {taint.get('Key')}, operator: Exists}}]",
                        )


def _selects(pod: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    selector = pod.get("nodeSelector") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items() if _is_ours(key))


def _is_ours(label: str) -> bool:
    return label == names.POOL_LABEL


def _tolerates(pod: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    effect = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}.get(str(taint.get("Effect")), "PreferNoSchedule")
    for toleration in pod.get("tolerations") or []:
        right_key = toleration.get("key") in (None, "", taint.get("Key"))
        right_value = toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("Value")
        if right_key and right_value and toleration.get("effect") in (None, "", effect):
            return True
    return False


def objects_outlive_nothing_they_need(assembly: Assembly) -> Iterator[Finding]:
    """A manifest is made after, and so deleted before, what it needs."""
    nodes = [group.group for group in node_groups(assembly) if not group.has_gpus]
    for manifest in assembly.of(MANIFEST):
        needed: list[Resource] = [*nodes, *assembly.of(ACCESS_ENTRY)]
        if any(entry.get("kind") == "PersistentVolume" for entry in objects_of(manifest)):
            needed += assembly.of(FILE_SYSTEM)
            needed += [one for one in assembly.of(ADD_ON) if one.properties.get("AddonName") == "aws-fsx-csi-driver"]
        for one in needed:
            if not assembly.before(one, manifest):
                yield Finding(
                    resource=manifest,
                    wrong=f"it does not depend on {one.path}",
                    why="CloudFormation may delete that first; the objects then cannot be deleted, and the stack hangs",
                    write="node.add_dependency, or a stack that depends on the other one",
                )


def runs_are_not_deployed(assembly: Assembly) -> Iterator[Finding]:
    """The training job never goes through CloudFormation."""
    for manifest in assembly.of(MANIFEST):
        for entry in objects_of(manifest):
            if entry.get("kind") in _RUNS:
                yield Finding(
                    resource=manifest,
                    wrong=f"it contains the {entry['kind']} {entry.get('metadata', {}).get('name')}",
                    why="an update of the stack would restart or delete a run that is under way",
                    write="nothing: `cdk8s synth` writes the job, and `kubectl apply` starts it",
                )


RULES = (
    Rule("HF040", "manifests are small enough to be applied", manifests_are_small),
    Rule("HF041", "no template contains an unresolved token", no_token_is_left),
    Rule("HF042", "daemons tolerate the taints of the nodes they select", daemons_tolerate_their_nodes),
    Rule("HF043", "manifests are deleted before what they need", objects_outlive_nothing_they_need),
    Rule("HF044", "no run is deployed by CloudFormation", runs_are_not_deployed),
)
