"""docs/deploy.md and docs/bug-cases-cluster.md say what is so: prices, context keys, stacks, tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from app import build
from holdfast.config import load_profile, prices
from holdfast.config.fields import field_at
from infra.deployment import Deployment
from infra.rules.catalog import RULES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
CASES = (ROOT / "docs" / "bug-cases-cluster.md").read_text(encoding="utf-8")
DECISIONS = sorted((ROOT / "docs" / "adr").glob("00[01][0-9]-*.md"))


def rows(first_cell: str) -> list[list[str]]:
    """Cells of the table rows that begin so."""
    found = re.findall(rf"^\| {re.escape(first_cell)} \|(.*)\|$", PAGE, flags=re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in found]


@pytest.mark.parametrize("step, at_full_size", [("4", False), ("7", True)])
def test_the_prices_of_the_page_are_those_of_the_estimate(step: str, at_full_size: bool) -> None:
    ((head,), (row,)) = rows("from step"), rows(step)
    for cell, price in zip(head[1:], row[1:], strict=True):
        config = load_profile(cell.removeprefix("P = "))
        nodes = prices.full_size(config) if at_full_size else config.aws.capacity.desired_nodes
        assert price == f"${prices.estimate(config, nodes).hourly_usd:,.2f} an hour"


def test_every_context_key_exists() -> None:
    keys = set(re.findall(r"-c ([a-z_.]+)=", PAGE)) | set(re.findall(r"`([a-z_.]+)=[^`]+`", PAGE))
    unknown = [
        key for key in keys - {"profile"} if key not in Deployment.model_fields and field_at(key.split(".")) is None
    ]
    assert unknown == [] and len(keys) > 8


def test_every_stack_of_a_command_is_one_of_the_app() -> None:
    source = ast.parse((ROOT / "app.py").read_text(encoding="utf-8"))
    (function,) = (node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == build.__name__)
    ids = {
        call.args[1].value
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
    }
    named = set(re.findall(r"cdk (?:deploy|destroy) ([A-Z]\w+)", PAGE))
    assert named == {"Gpu", "Workload", "Storage", "Cluster", "Network"} <= ids


def test_every_rule_that_is_named_exists() -> None:
    ids = {rule.id for rule in RULES}
    texts = [PAGE, CASES, *(path.read_text(encoding="utf-8") for path in DECISIONS)]
    named = set(re.findall(r"HF\d{3}", "".join(texts)))
    assert named and named <= ids


def test_every_case_about_clusters_is_told_with_its_thread_and_its_tests() -> None:
    parts = re.split(r"^### (case-\d\d) ", CASES, flags=re.MULTILINE)[1:]
    cases = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(cases) == [f"case-{number}" for number in (20, 21, 22, 23, 24, 25, 26, 28, 31)]
    for case, text in cases.items():
        tests = re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", text, flags=re.MULTILINE)
        assert "**Seen:**" in text and "https://" in text and "**Here:**" in text and tests, case
        missing = [f"{file}::{test}" for file, test in tests if f"def {test}(" not in (ROOT / file).read_text()]
        assert missing == [], case


@pytest.mark.parametrize("number", ["0008", "0009", "0010", "0011"])
def test_a_decision_has_its_parts_and_fits_on_a_page(number: str) -> None:
    (path,) = (path for path in DECISIONS if path.name.startswith(number))
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert text.startswith(f"# {int(number)}. ") and "**Decision.**" in text and "*Not verified:*" in text
