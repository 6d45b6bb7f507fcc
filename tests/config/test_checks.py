"""Each rule between fields refuses, names the key to change, and names the other fields that it rests on."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.config import ConfigError, aws_checks, checks, load_profile, metrics, model, profile_names
from holdfast.config.checks import cross_problems, lattice
from holdfast.config.problems import Problem
from tests.config.broken_models import MODEL_CASES
from tests.config.broken_profiles import CASES as OTHER_CASES
from tests.config.broken_profiles import P5X2, Case

CASES = [*OTHER_CASES, *MODEL_CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.keys[0]} ({', '.join(case.overrides)})")
def test_a_rule_refuses_and_names_both_ends(case: Case) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_profile(case.profile, case.overrides)
    problems = refusal.value.problems
    assert tuple(problem.key for problem in problems) == case.keys
    for name in case.names:
        assert re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", problems[0].why), f"{name} is not in: {problems[0]}"


@pytest.mark.parametrize("module", [checks, aws_checks, metrics, model], ids=lambda module: str(module.__name__))
def test_every_rule_has_a_case(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.__file__
    source = Path(module.__file__).read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    rules = {call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Problem"}
    reached = set()

    def record(*values: Any) -> Problem:
        reached.add(sys._getframe(1).f_lineno)
        return Problem(*values)

    monkeypatch.setattr(module, "Problem", record)
    for case in CASES:
        with pytest.raises(ConfigError):
            load_profile(case.profile, case.overrides)
    assert rules == reached, f"rules without a case: lines {sorted(rules - reached)} of {module.__file__}"


@pytest.mark.parametrize("profile", profile_names())
def test_a_profile_has_no_problem_with_each_layer_switched(profile: str) -> None:
    for off in (["recovery.in_process=false"], ["checkpoint.mode=off"], ["checkpoint.mode=sync"]):
        load_profile(profile, off)
    load_profile(profile, ["recovery.in_process=false", "recovery.in_job=false", "recovery.spares=0"])


@pytest.mark.parametrize(
    ("profile", "path"),
    [("cpu-test", "/local"), ("gpu-local", "/local"), (P5X2, "/local/saves"), ("gpt2-g5x2", "/dev/shm/local")],
)
def test_a_local_tier_has_a_place_on_every_kind_of_node(profile: str, path: str) -> None:
    load_profile(profile, ["checkpoint.local.interval_steps=1", f"checkpoint.local.path={path}"])


def test_the_order_of_timeouts_depends_on_whether_collectives_can_be_aborted() -> None:
    gloo = [key for key, _ in lattice(load_profile("cpu-demo"))]
    nccl = [key for key, _ in lattice(load_profile("gpu-local"))]
    assert gloo.index("recovery.process_group_timeout_s") < gloo.index("recovery.in_process_soft_timeout_s")
    assert nccl[-1] == "recovery.process_group_timeout_s"


def test_in_process_timeouts_do_not_matter_while_the_layer_is_off() -> None:
    assert cross_problems(load_profile("cpu-test", ["recovery.in_process_soft_timeout_s=1000"])) == []
