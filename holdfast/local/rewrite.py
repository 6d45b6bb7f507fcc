"""What must differ from the manifest because a pod runs on this machine, and nothing else. Pure.

Each difference is recorded as a Rewrite; undoing them gives back the container of the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast.local.objects import Container, JobSet, Probe
from holdfast.local.volumes import Placement

# A mount path counts only where a path begins and ends on a whole component: not in /data/fsx, $HOME/fsx or /fsx-old.
_BEFORE_PATH = r"(?<![\w.~/})\]*?-])"
_AFTER_PATH = r"(?![\w.~-])"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_ANY_ADDRESS = re.compile(r"(?<![\w.])0\.0\.0\.0:(\d+)(?![\w.])")
_INTERFACE = re.compile(r"\beth\d+\b")
FIELD_REASON = "field of the pod"


@dataclass(frozen=True)
class Rewrite:
    """One difference: in `field` of `object`, `old` became `new`. old is None for what the manifest does not have."""

    object: str
    field: str
    old: str | None
    new: str
    reason: str


@dataclass(frozen=True)
class PodFacts:
    """What a pod's container finds here. addresses: host name -> loopback address. ports: (host, port) -> port."""

    jobset: JobSet
    pod: str
    fields: Mapping[str, str]
    """Downward API: `metadata.name`, `spec.nodeName`, `metadata.labels['x']` ..."""
    host: str
    placements: tuple[Placement, ...]
    addresses: Mapping[str, str]
    ports: Mapping[tuple[str, int], int]
    additions: Mapping[str, tuple[str, str]]
    """Variables that an image or a kubelet would add: name -> (value, reason). The manifest's own win."""


@dataclass(frozen=True)
class PodPlan:
    """How to start the pod's container. The probe's port, if any, is a number."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    probe: Probe | None
    rewrites: tuple[Rewrite, ...]


def plan_pod(container: Container, facts: PodFacts) -> PodPlan:
    """The container as it runs here."""
    return _Planner(container, facts).plan()


class _Planner:
    def __init__(self, container: Container, facts: PodFacts) -> None:
        self.container = container
        self.facts = facts
        self.rewrites: list[Rewrite] = []
        self._paths = {placement.mount_path: placement for placement in facts.placements}
        longest_first = sorted(self._paths, key=len, reverse=True)
        self._path = re.compile(_BEFORE_PATH + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER_PATH)
        hosts = "|".join(re.escape(host) for host in facts.addresses)
        subdomain, namespace = map(re.escape, (facts.jobset.subdomain, facts.jobset.namespace))
        domain = rf"\.{subdomain}(?:\.{namespace}(?:\.svc(?:\.cluster\.local)?)?)?"
        self._name = re.compile(rf"(?<![\w.-])({hosts}){domain}(?::(\d+))?(?![\w-]|\.\w)")

    def plan(self) -> PodPlan:
        for placement in self.facts.placements:
            self._note(
                f"volumeMounts[{placement.mount_path}]", placement.mount_path, str(placement.path), placement.reason
            )
        for _, port in self.container.ports:
            self._note(f"ports[{port}]", str(port), str(self._port(port)), "a free port of this machine")
        environment = self._environment()
        argv = [
            self._expanded(f"{field}[{index}]", self._text(f"{field}[{index}]", text), environment)
            for field, texts in (("command", self.container.command), ("args", self.container.args))
            for index, text in enumerate(texts)
        ]
        return PodPlan(tuple(argv), environment, self._probe(), tuple(self.rewrites))

    def _environment(self) -> dict[str, str]:
        own = {variable.name for variable in self.container.environment}
        environment = {}
        for name, (value, reason) in self.facts.additions.items():
            if name not in own:
                self._note(f"env.{name}", None, value, reason)
                environment[name] = value
        for variable in self.container.environment:
            field = f"env.{variable.name}"
            if variable.field_path is not None:
                value = self.facts.fields.get(variable.field_path, "")  # a label that the pod lacks is empty
                self._note(field, variable.field_path, value, FIELD_REASON)
            else:
                value = self._text(field, variable.value)
                if variable.name.endswith("_SOCKET_IFNAME"):
                    value = self._replaced(field, _INTERFACE, value, lambda _: ("lo", "pods talk over loopback"))
            environment[variable.name] = self._expanded(field, value, environment)
        return environment

    def _text(self, field: str, text: str) -> str:
        if self._paths:
            text = self._replaced(field, self._path, text, self._local_path)
        text = self._replaced(field, _ANY_ADDRESS, text, self._own_address)
        return self._replaced(field, self._name, text, self._local_name)

    def _own_address(self, match: re.Match[str]) -> tuple[str, str]:
        """Where the pod listens at a port that it declares: its own address, since others share this machine."""
        port = int(match.group(1))
        if port not in (declared for _, declared in self.container.ports):
            return match.group(0), ""
        return f"{self.facts.addresses[self.facts.host]}:{self._port(port)}", "address and port of this pod"

    def _local_path(self, match: re.Match[str]) -> tuple[str, str]:
        placement = self._paths[match.group(1)]
        return str(placement.path), placement.reason

    def _local_name(self, match: re.Match[str]) -> tuple[str, str]:
        host, port = match.group(1), match.group(2)
        address = self.facts.addresses[host]
        if port is None:
            return address, "address of that pod"
        return f"{address}:{self.facts.ports.get((host, int(port)), int(port))}", "address and port of that pod"

    def _expanded(self, field: str, text: str, environment: Mapping[str, str]) -> str:
        """Resolve $(NAME) as a kubelet does: unknown names stay, $$ is one $."""

        def value(match: re.Match[str]) -> tuple[str, str]:
            name = match.group(1)
            if name is None:
                return "$", "an escaped $"
            return environment.get(name, match.group(0)), f"reference to {name}"

        return self._replaced(field, _REFERENCE, text, value)

    def _replaced(
        self, field: str, pattern: re.Pattern[str], text: str, local: Callable[[re.Match[str]], tuple[str, str]]
    ) -> str:
        def replacement(match: re.Match[str]) -> str:
            new, reason = local(match)
            if new != match.group(0):
                self._note(field, match.group(0), new, reason)
            return new

        return pattern.sub(replacement, text)

    def _probe(self) -> Probe | None:
        probe = self.container.readiness
        if probe is None:
            return None
        if probe.command is not None:
            command = [self._text(f"readinessProbe.command[{index}]", text) for index, text in enumerate(probe.command)]
            return replace(probe, command=tuple(command))
        port = self.container.port_number(probe.port)
        self._note("readinessProbe.port", str(probe.port), str(self._port(port)), "a free port of this machine")
        return replace(probe, port=self._port(port))

    def _port(self, port: int) -> int:
        return self.facts.ports.get((self.facts.host, port), port)

    def _note(self, field: str, old: str | None, new: str, reason: str) -> None:
        self.rewrites.append(Rewrite(self.facts.pod, field, old, new, reason))
