"""Reads a synthesized cloud assembly: templates by construct id, resources by type, and what depends on what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.config import RunConfig

Json = Any
NODEGROUP = "AWS::EKS::Nodegroup"
TEMPLATE = "AWS::EC2::LaunchTemplate"
FILE_SYSTEM = "AWS::FSx::FileSystem"
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"


class Node(NamedTuple):
    """One resource: the construct id of its stack, and its logical id."""

    stack: str
    logical_id: str


@dataclass(frozen=True)
class Assembly:
    """A `cdk.out` folder, and the config that it was made from."""

    folder: Path
    config: RunConfig

    @cached_property
    def templates(self) -> dict[str, Json]:
        """Construct id of each stack -> its template."""
        paths = sorted(self.folder.glob("*.template.json"))
        return {path.name.partition(".")[0]: json.loads(path.read_text()) for path in paths}

    @cached_property
    def stack_needs(self) -> dict[str, set[str]]:
        """Stack -> the stacks that are deployed before it."""
        artifacts = json.loads((self.folder / "manifest.json").read_text())["artifacts"]
        return {stack: set(artifacts[stack].get("dependencies", ())) & set(self.templates) for stack in self.templates}

    def all(self, stack: str, kind: str) -> dict[str, Json]:
        """Logical id -> resource, for the resources of a type in a stack."""
        resources = self.templates[stack]["Resources"]
        return {name: resource for name, resource in resources.items() if resource["Type"] == kind}

    def one(self, stack: str, kind: str) -> Json:
        """Properties of the only resource of a type."""
        (resource,) = self.all(stack, kind).values()
        return resource.get("Properties", {})

    @property
    def launch_data(self) -> Json:
        """Launch template data of the GPU nodes."""
        return self.one("Gpu", TEMPLATE)["LaunchTemplateData"]

    @property
    def objects(self) -> list[Json]:
        """Every Kubernetes object that the Workload stack applies; values of other stacks as "?"."""
        found = []
        for resource in self.all("Workload", MANIFEST).values():
            found += json.loads(joined(resource["Properties"]["Manifest"]))
        return found

    @cached_property
    def _exports(self) -> dict[str, Node]:
        found = {}
        for stack, template in self.templates.items():
            for output in template.get("Outputs", {}).values():
                if "Export" in output:
                    (target, *_) = list(_references(output["Value"]))
                    found[output["Export"]["Name"]] = Node(stack, target)
        return found

    def target(self, stack: str, value: Json) -> Node:
        """The resource that a Ref, GetAtt or ImportValue in a stack stands for."""
        if "Fn::ImportValue" in value:
            return self._exports[value["Fn::ImportValue"]]
        (logical_id,) = list(_references(value))
        return Node(stack, logical_id)

    def needs(self, node: Node) -> set[Node]:
        """What must be there before a resource: what it names or waits for, and all of the stacks before its own."""
        resource = self.templates[node.stack]["Resources"][node.logical_id]
        wanted = {Node(node.stack, name) for name in [*resource.get("DependsOn", ()), *_references(resource)]}
        wanted |= {self._exports[name] for name in _imports(resource)}
        for stack in self.stack_needs[node.stack]:
            wanted |= {Node(stack, name) for name in self.templates[stack]["Resources"]}
        return {found for found in wanted if found.logical_id in self.templates[found.stack]["Resources"]}

    def everything_before(self, node: Node) -> set[Node]:
        """All that a resource needs, directly or not."""
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            new = self.needs(waiting.pop()) - found
            found |= new
            waiting += new
        return found

    @property
    def nodes(self) -> list[Node]:
        """Every resource of every stack."""
        return [Node(stack, name) for stack, template in self.templates.items() for name in template["Resources"]]


def joined(value: Json) -> str:
    """A string, or an Fn::Join of strings and references; references become `?`."""
    if isinstance(value, str):
        return value
    _, parts = value["Fn::Join"]
    return "".join(part if isinstance(part, str) else "?" for part in parts)


def _references(value: Json) -> Iterator[str]:
    for key, inner in _pairs(value):
        if key == "Ref":
            yield inner
        elif key == "Fn::GetAtt":
            yield inner[0] if isinstance(inner, list) else inner.partition(".")[0]


def _imports(value: Json) -> Iterator[str]:
    return (inner for key, inner in _pairs(value) if key == "Fn::ImportValue")


def _pairs(value: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _pairs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pairs(inner)
