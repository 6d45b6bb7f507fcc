"""Templates as they were reviewed. A change shows up as a diff of one file: `pytest --snapshot-update` accepts it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.infra.assembly import MANIFEST, Assembly, joined

STACKS = ("Network", "Cluster", "Storage", "Workload", "Gpu")
ASSET = re.compile(r"[0-9a-f]{64}")


def scrubbed(value: Any) -> Any:
    """Without hashes of assets, which change with every release of a layer."""
    if isinstance(value, dict):
        return {key: scrubbed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [scrubbed(inner) for inner in value]
    return ASSET.sub("<asset>", value) if isinstance(value, str) else value


def reviewed(template: Any) -> Any:
    """What a person should look at: no bootstrap check, no paths, and of each manifest the names of its objects.

    The objects themselves are in the snapshots of tests/k8s.
    """
    resources = {}
    for name, resource in template["Resources"].items():
        resource = {key: value for key, value in resource.items() if key != "Metadata"}
        if resource["Type"] == MANIFEST:
            objects = json.loads(joined(resource["Properties"]["Manifest"]))
            titles = [f"{item['kind']}/{item['metadata']['name']}" for item in objects]
            resource["Properties"] = {**resource["Properties"], "Manifest": titles}
        resources[name] = resource
    parameters = {key: value for key, value in template["Parameters"].items() if key != "BootstrapVersion"}
    kept = {key: value for key, value in template.items() if key not in ("Rules", "Resources", "Parameters")}
    return scrubbed({**kept, "Parameters": parameters, "Resources": resources})


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_is_as_it_was_reviewed(assembly: Assembly, stack: str, snapshot: SnapshotAssertion) -> None:
    assert reviewed(assembly.templates[stack]) == snapshot(extension_class=JSONSnapshotExtension)


def test_nothing_of_a_token_is_left(assembly: Assembly) -> None:
    text = json.dumps(assembly.templates)
    assert "${Token[" not in text and not re.search(r"-1\.\d+e\+?\d{3}", text)
