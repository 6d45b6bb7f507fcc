"""Which metrics and labels a PromQL expression uses; and what Grafana puts in the place of its variables."""

from __future__ import annotations

from typing import Any, NamedTuple

import promql_parser as promql

from holdfast.metrics import METRICS, RUN

TARGET_LABELS = {"namespace", "pod", "container", "endpoint", "job", "instance", "node"}
"""What the operator's PodMonitor gives every series of a target; `node` is by our relabeling."""
OWN_SERIES = {series: {*metric.all_labels, *TARGET_LABELS} for metric in METRICS for series in metric.series}
FOREIGN_SERIES = {
    "up": {RUN, *TARGET_LABELS},
    # github.com/kubernetes/kube-state-metrics/blob/main/docs/metrics/workload/job-metrics.md; `run` by label_replace.
    "kube_job_failed": {RUN, "namespace", "job_name", "condition", "reason"},
}
"""Not of a run: Prometheus' own, whose `run` is by our relabeling, and one of kube-state-metrics."""
SERIES = OWN_SERIES | FOREIGN_SERIES
"""Series -> labels that it may have."""
_VARIABLES = {"$run": "cpu-test", "$__rate_interval": "2m"}


class Uses(NamedTuple):
    """Series that are selected, and (label, series it must be of) for every label that is named."""

    series: set[str]
    labels: set[tuple[str, str]]


def uses(expression: str) -> Uses:
    """Raises ValueError if the expression is not PromQL."""
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    found = Uses(set(), set())
    _walk(promql.parse(expression), found)
    return found


def unknown(expression: str) -> set[str]:
    """Series that nobody serves, and labels that their series do not have."""
    used = uses(expression)
    wrong = used.series - SERIES.keys()
    return wrong | {f"{series}.{label}" for label, series in used.labels if label not in SERIES.get(series, {label})}


def _walk(node: Any, found: Uses) -> set[str]:
    """Add what a node uses; the series below it."""
    if isinstance(node, promql.VectorSelector):
        name = node.name or "a selector without a name"
        found.series.add(name)
        found.labels.update((matcher.name, name) for matcher in node.matchers.matchers)
        return {name}
    below: set[str] = set()
    for child in _children(node):
        below |= _walk(child, found)
    found.labels.update((label, series) for label in _grouped(node) for series in below)
    return below


def _children(node: Any) -> list[Any]:
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.Call):
        return list(node.args)
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    inner = getattr(node, "expr", None)
    assert inner is not None or isinstance(node, promql.NumberLiteral | promql.StringLiteral), node
    return [] if inner is None else [inner]


def _grouped(node: Any) -> list[str]:
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql.AggregateExpr):
        return [] if modifier is None else list(modifier.labels)
    matching = getattr(modifier, "matching", None)
    return [] if matching is None else list(matching.labels)
