"""What a rule must say of objects that were good and are then broken in one way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from k8s.rules import Rule

Break = Callable[[list[Any]], Any]


def assert_found(rule: Rule, objects: list[Any], damage: Break) -> None:
    """The rule finds the damage, and says key, reason and remedy."""
    broken = copy.deepcopy(objects)
    damage(broken)
    problems = list(rule(broken))
    assert problems
    assert all(problem.key and problem.why and problem.fix for problem in problems)
