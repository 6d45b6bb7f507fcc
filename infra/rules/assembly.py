"""The synthesized templates as one graph: resources by type, references followed across stacks, what comes before what.

Plain dicts only, so that a rule can be tested without the CDK.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

CLUSTER = "AWS::EKS::Cluster"
NODE_GROUP = "AWS::EKS::Nodegroup"
ADD_ON = "AWS::EKS::Addon"
ACCESS_ENTRY = "AWS::EKS::AccessEntry"
LAUNCH_TEMPLATE = "AWS::EC2::LaunchTemplate"
SECURITY_GROUP = "AWS::EC2::SecurityGroup"
FILE_SYSTEM = "AWS::FSx::FileSystem"
BUCKET = "AWS::S3::Bucket"
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource of one template."""

    stack: str
    logical_id: str
    body: Mapping[str, Any]

    @property
    def type(self) -> str:
        """AWS::EC2::Instance."""
        return str(self.body["Type"])

    @property
    def properties(self) -> dict[str, Any]:
        """Empty if there are none."""
        return dict(self.body.get("Properties") or {})

    @property
    def path(self) -> str:
        """Construct path, or stack and logical id where the template does not tell."""
        return str((self.body.get("Metadata") or {}).get("aws:cdk:path", f"{self.stack}/{self.logical_id}"))

    @property
    def key(self) -> tuple[str, str]:
        """Identity over all stacks."""
        return self.stack, self.logical_id


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Templates by stack, and which stacks each one is deployed after."""

    templates: Mapping[str, Mapping[str, Any]]
    stack_order: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def resources(self) -> dict[tuple[str, str], Resource]:
        """Every resource by stack and logical id."""
        found = {}
        for stack, template in self.templates.items():
            for logical_id, body in (template.get("Resources") or {}).items():
                found[stack, logical_id] = Resource(stack=stack, logical_id=logical_id, body=body)
        return found

    def of(self, *types: str) -> list[Resource]:
        """All resources of these types, in the order of the templates."""
        return [resource for resource in self.resources.values() if resource.type in types]

    def target(self, stack: str, value: Any) -> Resource | None:
        """The resource that a Ref, GetAtt, ImportValue or GetStackOutput leads to; None for anything else."""
        place = self._follow(stack, value)
        return self.resources.get(place[:2]) if place else None

    def same(self, stack: str, value: Any, other_stack: str, other: Any) -> bool:
        """Whether two values are the same thing: equal text, or references that lead to the same attribute."""
        first, second = self._follow(stack, value), self._follow(other_stack, other)
        if first or second:
            return first == second
        return bool(value == other)

    def _follow(self, stack: str, value: Any) -> tuple[str, str, str] | None:
        """(stack, logical id, attribute) of a reference."""
        if not isinstance(value, Mapping) or len(value) != 1:
            return None
        ((function, operand),) = value.items()
        if function == "Ref" and (stack, operand) in self.resources:
            return stack, str(operand), "Ref"
        if function == "Fn::GetAtt":
            parts = operand.split(".", 1) if isinstance(operand, str) else operand
            return (stack, str(parts[0]), str(parts[1])) if (stack, parts[0]) in self.resources else None
        if function == "Fn::ImportValue" and isinstance(operand, str):
            found = self._exports.get(operand)
            return self._follow(*found) if found else None
        if function == "Fn::GetStackOutput" and isinstance(operand, Mapping):
            other = str(operand.get("StackName"))
            output = (self.templates.get(other, {}).get("Outputs") or {}).get(operand.get("OutputName"))
            return self._follow(other, output["Value"]) if output else None
        return None

    @cached_property
    def _exports(self) -> dict[str, tuple[str, Any]]:
        outputs = (
            (stack, output) for stack, template in self.templates.items() for output in _mapping(template, "Outputs")
        )
        return {output["Export"]["Name"]: (stack, output["Value"]) for stack, output in outputs if "Export" in output}

    def before(self, first: Resource, second: Resource) -> bool:
        """Whether `second` is made after `first`: by its references or DependsOn, or because its whole stack is."""
        if first.stack != second.stack:
            return first.stack in self.stacks_before(second.stack)
        return first.logical_id in self._in_stack_before(second)

    def stacks_before(self, stack: str) -> set[str]:
        """Every stack that is deployed before this one, directly or not."""
        return _closure(stack, self._stack_edges)

    @cached_property
    def _stack_edges(self) -> dict[str, set[str]]:
        edges = {stack: set(self.stack_order.get(stack, ())) for stack in self.templates}
        for stack, template in self.templates.items():
            for name in _imports(template):
                if name in self._exports:
                    edges[stack].add(self._exports[name][0])
        return edges

    def _in_stack_before(self, resource: Resource) -> set[str]:
        return _closure(resource.logical_id, self._edges[resource.stack])

    @cached_property
    def _edges(self) -> dict[str, dict[str, set[str]]]:
        return {
            stack: {logical_id: _references(body) for logical_id, body in (template.get("Resources") or {}).items()}
            for stack, template in self.templates.items()
        }


def items(resource: Resource, *names: str) -> list[dict[str, Any]]:
    """The mappings in a list below the properties; empty where there is no such list."""
    value: Any = resource.properties
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A string with what only AWS knows put as `<ref>`: Fn::Join and Fn::Sub are joined, any other function is one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        ((function, operand),) = value.items()
        if function == "Fn::Join":
            return str(operand[0]).join(text_of(part) for part in operand[1])
        if function == "Fn::Base64":
            return text_of(operand)
        if function == "Fn::Sub":
            return re.sub(r"\$\{[^}]*\}", "<ref>", operand if isinstance(operand, str) else str(operand[0]))
    return "<ref>"


def objects_of(manifest: Resource) -> list[dict[str, Any]]:
    """The Kubernetes objects of a manifest resource; empty if its text is not JSON."""
    try:
        loaded = json.loads(text_of(manifest.properties.get("Manifest", "")))
    except ValueError:
        return []
    listed = loaded if isinstance(loaded, list) else [loaded]
    return [entry for entry in listed if isinstance(entry, dict)]


def _mapping(template: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    yield from (template.get(name) or {}).values()


def _imports(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "Fn::ImportValue" and isinstance(inner, str):
                yield inner
            else:
                yield from _imports(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _imports(inner)


def _references(body: Any) -> set[str]:
    """Logical ids that a resource depends on in its own stack."""
    found: set[str] = set()
    if isinstance(body, Mapping):
        for key, inner in body.items():
            if key == "Ref" and isinstance(inner, str):
                found.add(inner)
            elif key == "Fn::GetAtt":
                found.add(str(inner.split(".")[0] if isinstance(inner, str) else inner[0]))
            elif key == "Fn::Sub":
                text = inner if isinstance(inner, str) else inner[0]
                found |= set(re.findall(r"\$\{([A-Za-z0-9]+)", text))
                found |= _references(inner[1:]) if isinstance(inner, list) else set()
            elif key == "DependsOn":
                found |= {inner} if isinstance(inner, str) else set(inner)
            else:
                found |= _references(inner)
    elif isinstance(body, list):
        for inner in body:
            found |= _references(inner)
    return found


def _closure(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    open_ends = [start]
    while open_ends:
        for name in edges.get(open_ends.pop(), ()):
            if name not in seen:
                seen.add(name)
                open_ends.append(name)
    return seen
