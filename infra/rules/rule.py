"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.rules.assembly import Assembly, Resource


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that AWS would refuse, or that would cost money or data: where, what, why, and what to write."""

    resource: Resource
    wrong: str
    why: str
    write: str


Check = Callable[[Assembly], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A check with its id. The title says what holds when it finds nothing."""

    id: str
    title: str
    check: Check
