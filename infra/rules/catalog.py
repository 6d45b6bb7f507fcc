"""All rules, in the order of their ids, and one function that asks them all."""

from __future__ import annotations

from collections.abc import Iterator

from infra.rules import cluster, groups, interfaces, launch, manifests, storage
from infra.rules.assembly import Assembly
from infra.rules.rule import Finding, Rule

RULES: tuple[Rule, ...] = (
    *interfaces.RULES,
    *launch.RULES,
    *groups.RULES,
    *storage.RULES,
    *cluster.RULES,
    *manifests.RULES,
)


def findings(assembly: Assembly) -> Iterator[tuple[Rule, Finding]]:
    """Everything that is wrong, rule by rule."""
    for rule in RULES:
        for finding in rule.check(assembly):
            yield rule, finding
