"""Metric of our table + values -> what prometheus_client serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.metrics import Metric

Value = float | tuple[int, float]
"""A number; for a summary (count, sum)."""


def family(metric: Metric, values: Mapping[tuple[str, ...], Value]) -> Any:
    """The metric with one sample for each tuple of label values, in the order of metric.all_labels; none for no values.

    Imports prometheus_client: call it in the server's thread.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "summary": SummaryMetricFamily}
    made = kinds[metric.kind](metric.name, metric.help, labels=metric.all_labels)
    for labels, value in values.items():
        if isinstance(value, tuple):
            made.add_metric(labels, count_value=value[0], sum_value=value[1])
        else:
            made.add_metric(labels, value)
    return made
