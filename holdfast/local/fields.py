"""Strict reading of nested mappings: what is used is taken, and what is left over must be known to be harmless."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.config.problems import Problem

T = TypeVar("T")


@dataclass
class Findings:
    """What reading has found: problems that stop the run, and keys that are ignored on one machine."""

    problems: list[Problem] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def unsupported(self, key: str, value: Any, why: str = "the local runner does not do this") -> None:
        """Note something that would change what runs."""
        self.problems.append(Problem(key, value, why, "remove it, or run this manifest on Kubernetes"))


class Fields:
    """One mapping of a manifest. `where` is its dotted key."""

    def __init__(self, where: str, raw: Any, findings: Findings) -> None:
        self.where = where
        self.findings = findings
        if raw is not None and not isinstance(raw, dict):
            findings.problems.append(Problem(where, raw, "it is not a mapping", "correct the manifest"))
            raw = None
        self._raw: dict[str, Any] = dict(raw or {})

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def take(self, key: str, kind: Callable[[Any], T], default: T) -> T:
        """The value of key as `kind`; the default if it is missing, or if it is wrong, which is noted."""
        if self._raw.get(key) is None:
            self._raw.pop(key, None)
            return default
        value = self._raw.pop(key)
        try:
            return kind(value)
        except (TypeError, ValueError):
            self.findings.problems.append(
                Problem(f"{self.where}.{key}", value, f"it is not a {kind.__name__}", "correct the manifest")
            )
            return default

    def items(self, key: str) -> list[Any]:
        """The list below key, empty if missing."""
        return self._typed(key, list) or []

    def section(self, key: str) -> Fields:
        """The mapping below key, empty if missing."""
        return Fields(f"{self.where}.{key}", self._raw.pop(key, None), self.findings)

    def sections(self, key: str) -> list[Fields]:
        """The mappings in the list below key."""
        return [Fields(f"{self.where}.{key}.{index}", raw, self.findings) for index, raw in enumerate(self.items(key))]

    def strings(self, key: str) -> tuple[str, ...]:
        """The list of strings below key."""
        return tuple(str(item) for item in self.items(key))

    def mapping(self, key: str) -> dict[str, str]:
        """The mapping of strings below key."""
        return {str(name): str(value) for name, value in (self._typed(key, dict) or {}).items()}

    def expect(self, key: str, *allowed: Any) -> None:
        """Note a problem if key is there with another value than those the runner can do."""
        if key in self._raw and (value := self._raw.pop(key)) not in allowed:
            wanted = " or ".join(repr(item) for item in allowed)
            self.findings.unsupported(f"{self.where}.{key}", value, f"the local runner can only do {wanted}")

    def _typed(self, key: str, kind: type[T]) -> T | None:
        value = self._raw.pop(key, None)
        if value is None or isinstance(value, kind):
            return value
        self.findings.problems.append(
            Problem(f"{self.where}.{key}", value, f"it is not a {kind.__name__}", "correct the manifest")
        )
        return None

    def done(self, harmless: Collection[str] = ()) -> None:
        """Say that everything of meaning was taken. Harmless leftovers are listed, others are problems."""
        for key, value in self._raw.items():
            if key in harmless:
                self.findings.ignored.append(f"{self.where}.{key}")
            else:
                self.findings.unsupported(f"{self.where}.{key}", value)
