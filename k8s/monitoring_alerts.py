"""Alert rules: what needs a person. Everything that a layer cures by itself is on the dashboard only.

Every expression keeps the label `run`, and every alert has a section of its name in docs/operations.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast import metrics as m
from holdfast.config import RunConfig, names
from k8s.placement import Manifest

RUNBOOK = "docs/operations.md"
CRITICAL, WARNING = "critical", "warning"
"""critical: the run makes no progress that counts. warning: it goes on, and loses something."""
FAILED_JOBS = "kube_job_failed"
"""Of kube-state-metrics, which comes with the operator's Helm chart. No metric of a run outlives its pods, and so none
can say that it has failed."""
GOODPUT_AFTER_S = 3600
"""Before, one restart is much of the time."""


@dataclass(frozen=True)
class Alert:
    """One rule. hold: how long the expression must stay true, as Prometheus writes durations."""

    name: str
    severity: str
    expr: str
    hold: str
    summary: str
    """For the pager: what is wrong, with Prometheus' templates."""

    @property
    def runbook(self) -> str:
        """Where the steps for it are: a section of the page has its name."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def rule(self, run: str) -> Manifest:
        """As an item of PrometheusRule."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity, m.RUN: run},
            "annotations": {"summary": self.summary, "runbook": self.runbook},
        }


def alerts(config: RunConfig) -> tuple[Alert, ...]:
    """The alerts of one run."""
    found = [_run_failed(config), _no_progress(config), _ranks_missing(config), _loss_not_finite(config)]
    if config.checkpoint.mode != "off":
        found += [_commit_overdue(config), _saves_fail(config)]
    return (*found, _restarts(config), _goodput_low(config), _metrics_down(config), _goodput_stale(config))


def _of(metric: m.Metric | str, config: RunConfig, more: str = "") -> str:
    """`name{run="..."}`; a summary is named by its series."""
    name = metric if isinstance(metric, str) else metric.name
    return f'{name}{{{m.RUN}="{config.name}"{more}}}'


def _steps(config: RunConfig) -> str:
    """A series that every rank serves from its start."""
    return _of(m.STEP_SECONDS.series[1], config)


def _run_failed(config: RunConfig) -> Alert:
    # A restart of the JobSet deletes the Jobs that have failed, within seconds; only for the last time they stay.
    pattern = f"{config.name}-[0-9a-f]+-({names.CONTROL}|{names.WORKERS})-[0-9]+"
    failed = f'{FAILED_JOBS}{{job_name=~"{pattern}",condition="true"}}'
    return Alert(
        "HoldfastRunFailed",
        CRITICAL,
        f'max by (run) (label_replace({failed}, "{m.RUN}", "{config.name}", "", "")) > 0',
        "5m",
        "Run {{ $labels.run }} has ended for good, and nothing starts it again",
    )


def _no_progress(config: RunConfig) -> Alert:
    limit = config.metrics.alert_no_progress_s
    since = f"{math.ceil(limit)}s"
    return Alert(
        "HoldfastNoProgress",
        CRITICAL,
        # The second part: before its first step a process says when it began, which is never long ago where processes
        # crash soon and begin again. None of those within the limit has finished a step, and there was one before it.
        f"time() - max by (run) ({_of(m.STEP_TIME, config)}) > {limit:g}"
        f" or (sum by (run) (max_over_time({_steps(config)}[{since}])) == 0) + {limit:g}"
        f" and sum by (run) (count_over_time({_steps(config)}[5m] offset {since})) > 0",
        "1m",
        "Run {{ $labels.run }} has finished no step for {{ $value | humanizeDuration }}",
    )


def _ranks_missing(config: RunConfig) -> Alert:
    world = f"max by (run) ({_of(m.WORLD_SIZE, config)})"
    return Alert(
        "HoldfastRanksMissing",
        CRITICAL,
        # Without a single rank the count is not 0 but nothing at all.
        f"{world} - (count by (run) ({_steps(config)}) or 0 * {world}) > 0",
        "15m",
        "Run {{ $labels.run }} lacks {{ $value }} ranks",
    )


def _loss_not_finite(config: RunConfig) -> Alert:
    loss = _of(m.LOSS, config)
    return Alert(
        "HoldfastLossNotFinite",
        CRITICAL,
        # Only NaN differs from itself: it is seen at the first scrape of a process too, where nothing has grown yet.
        f"sum by (run) (increase({_of(m.NONFINITE_LOSSES, config)}[15m])) > 0 or count by (run) ({loss} != {loss}) > 0",
        "0m",
        "The loss of run {{ $labels.run }} is infinite or not a number",
    )


def _commit_overdue(config: RunConfig) -> Alert:
    interval = f"max by (run) ({_of(m.SAVE_INTERVAL, config)})"
    total, count = (f"sum by (run) (rate({_of(series, config)}[15m]))" for series in m.STEP_SECONDS.series)
    age = f"time() - max by (run) ({_of(m.COMMIT_TIME, config)})"
    behind = f"max by (run) ({_of(m.STEP, config)}) - max by (run) ({_of(m.COMMITTED_STEP, config)})"
    return Alert(
        "HoldfastCommitOverdue",
        CRITICAL,
        # The second part: after a pause of days the newest commit is old, and nothing is wrong.
        f"({age} > {config.metrics.alert_commit_intervals:g} * {interval} * {total} / {count})"
        f" and ({behind} > {interval})",
        "5m",
        "The newest commit of run {{ $labels.run }} is {{ $value | humanizeDuration }} old",
    )


def _saves_fail(config: RunConfig) -> Alert:
    # Rank 0 counts each failed save once, whoever's part it was.
    failures = _of(m.SAVE_FAILURES, config, f',{m.RANK}="0"')
    return Alert(
        "HoldfastSavesFail",
        WARNING,
        f"sum by (run) (increase({failures}[30m])) > 0",
        "0m",
        "Saves of run {{ $labels.run }} fail; checkpoint.max_failed_saves in a row end it",
    )


def _restarts(config: RunConfig) -> Alert:
    # Over all ranks first: the ranks of a new generation are new series, which have not grown.
    return Alert(
        "HoldfastRestartsOften",
        WARNING,
        f"increase(max by (run, layer) ({_of(m.RESTARTS, config)})[1h:1m]) > {config.metrics.alert_restarts_per_hour}",
        "0m",
        "Run {{ $labels.run }} has restarted {{ $value }} times in an hour ({{ $labels.layer }})",
    )


def _goodput_low(config: RunConfig) -> Alert:
    ratio = _of(m.GOODPUT, config, f',{m.MEASURE}="goodput"')
    return Alert(
        "HoldfastGoodputLow",
        WARNING,
        f"{ratio} < {config.metrics.alert_goodput_ratio:g}"
        f" and on (run) {_of(m.WALL_SECONDS, config)} > {GOODPUT_AFTER_S}",
        "30m",
        "Only {{ $value | humanizePercentage }} of the time of run {{ $labels.run }} since its first step has trained",
    )


def _metrics_down(config: RunConfig) -> Alert:
    control = _of("up", config, f',container="{names.CONTROL_CONTAINER}"')
    return Alert(
        "HoldfastMetricsDown",
        WARNING,
        # Ranks of idle spares serve nothing, so that only control can be judged by `up`.
        f"{control} == 0 or count by (run) ({_steps(config)}) unless on (run) {_of(m.WORLD_SIZE, config)}",
        "10m",
        "The control pod of run {{ $labels.run }} serves no metrics",
    )


def _goodput_stale(config: RunConfig) -> Alert:
    limit_s = 3 * config.metrics.goodput_interval_s + 12 * config.metrics.goodput_limit_s
    return Alert(
        "HoldfastGoodputStale",
        WARNING,
        f"time() - {_of(m.GOODPUT_TIME, config)} > {limit_s:g}",
        "5m",
        "The goodput of run {{ $labels.run }} was accounted {{ $value | humanizeDuration }} ago",
    )
