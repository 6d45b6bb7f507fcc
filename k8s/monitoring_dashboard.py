"""The Grafana dashboard of a run, made from the table of metrics: each panel's explanation is the metric's own help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from holdfast import metrics as m
from k8s.placement import Manifest

SCHEMA_VERSION = 39
"""Of Grafana's dashboard JSON; Grafana 11 and later read and migrate it."""
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RANGE = "[$__rate_interval]"
COLUMNS = 24
"""Width of Grafana's grid."""
ROW_HEIGHT = 8
STAT_HEIGHT = 4


@dataclass(frozen=True)
class Query:
    """One expression, and what its lines are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. about: the metrics that its explanation is made of. unit: Grafana's name of it."""

    title: str
    kind: str
    unit: str
    about: tuple[m.Metric, ...]
    queries: tuple[Query, ...]
    width: int = 8
    stacked: bool = False

    @property
    def instant(self) -> bool:
        """Whether it shows the present and no course of time."""
        return self.kind in ("stat", "bargauge")


def _of(metric: m.Metric | str, more: str = "") -> str:
    name = metric if isinstance(metric, str) else metric.name
    return f'{name}{{{m.RUN}="$run"{more}}}'


def _rate(metric: m.Metric | str) -> str:
    return f"rate({_of(metric)}{RANGE})"


_STEP_S = " / ".join(f"sum by (rank) ({_rate(series)})" for series in m.STEP_SECONDS.series)
"""Mean seconds per step of each rank."""
_AGE = f"time() - max({_of(m.COMMIT_TIME)})"
_SHARES = f"max by (bucket) ({_of(m.BUCKET_SECONDS)}) / on () group_left () max({_of(m.WALL_SECONDS)})"

_GOODPUT = _of(m.GOODPUT, f',{m.MEASURE}="goodput"')

STATS = (
    Panel("Goodput", "stat", "percentunit", (m.GOODPUT,), (Query(f"max({_GOODPUT})"),), 3),
    Panel(
        "Progress", "stat", "percentunit", (m.STEP, m.STEPS_PLANNED),
        (Query(f"max({_of(m.STEP)}) / max({_of(m.STEPS_PLANNED)})"),), 3,
    ),
    Panel("Step", "stat", "none", (m.STEP,), (Query(f"max({_of(m.STEP)})"),), 3),
    Panel("Committed step", "stat", "none", (m.COMMITTED_STEP,), (Query(f"max({_of(m.COMMITTED_STEP)})"),), 3),
    Panel("Age of last commit", "stat", "s", (m.COMMIT_TIME,), (Query(_AGE),), 3),
    Panel("Tokens per second", "stat", "short", (m.TOKENS,), (Query(f"sum({_rate(m.TOKENS)})"),), 3),
    Panel("MFU", "stat", "percentunit", (m.MFU,), (Query(f"avg({_of(m.MFU)})"),), 3),
    Panel(
        "Ranks", "stat", "none", (m.WORLD_SIZE,),
        (Query(f"count({_of(m.STEP_SECONDS.series[1])})", "serving"), Query(f"max({_of(m.WORLD_SIZE)})", "wanted")), 3,
    ),
)  # fmt: skip
"""The present, in one row."""

COURSES = (
    Panel(
        "Where the time went", "bargauge", "s", (m.BUCKET_SECONDS,),
        (Query(f"sort_desc(max by (bucket) ({_of(m.BUCKET_SECONDS)}) > 0)", "{{bucket}}"),), 12,
    ),
    Panel(
        "Share of wall time since the start", "timeseries", "percentunit", (m.BUCKET_SECONDS, m.WALL_SECONDS),
        (Query(_SHARES, "{{bucket}}"),), 12, stacked=True,
    ),
    Panel(
        "Step time", "timeseries", "s", (m.STEP_SECONDS, m.DATA_SECONDS),
        (
            Query(f"avg({_STEP_S})", "mean of ranks"),
            Query(f"max({_STEP_S})", "slowest rank"),
            Query(f"max(rate({_of(m.DATA_SECONDS)}{RANGE}) / {_rate(m.STEP_SECONDS.series[1])})", "of it data"),
        ),
    ),
    Panel(
        "Step time, spread between ranks", "timeseries", "s", (m.STEP_SECONDS, m.STRAGGLER_SECONDS),
        (
            Query(f"max({_STEP_S}) - min({_STEP_S})", "slowest - fastest"),
            Query(f"topk(5, {_STEP_S})", "rank {{rank}}"),
            Query(f"max by (rank) ({_of(m.STRAGGLER_SECONDS)})", "others wait for rank {{rank}}"),
        ),
    ),
    Panel("Tokens per second", "timeseries", "short", (m.TOKENS,), (Query(f"sum({_rate(m.TOKENS)})", "all ranks"),)),
    Panel(
        "Loss", "timeseries", "none", (m.LOSS, m.NONFINITE_LOSSES),
        (
            Query(f"avg({_of(m.LOSS)})", "mean of ranks"),
            Query(f"sum(increase({_of(m.NONFINITE_LOSSES)}{RANGE}))", "losses that are no number"),
        ),
    ),
    Panel("Learning rate", "timeseries", "none", (m.LEARNING_RATE,), (Query(f"max({_of(m.LEARNING_RATE)})", "rate"),)),
    Panel(
        "MFU", "timeseries", "percentunit", (m.MFU,),
        (Query(f"avg({_of(m.MFU)})", "mean of ranks"), Query(f"min({_of(m.MFU)})", "lowest rank")),
    ),
    Panel(
        "Steps at risk", "timeseries", "none", (m.STEP, m.COMMITTED_STEP, m.SAVE_INTERVAL),
        (
            Query(f"max({_of(m.STEP)}) - max({_of(m.COMMITTED_STEP)})", "not committed"),
            Query(f"max({_of(m.SAVE_INTERVAL)})", "between two saves"),
        ),
    ),
    Panel(
        "Age of last commit, and of last step", "timeseries", "s", (m.COMMIT_TIME, m.STEP_TIME),
        (Query(_AGE, "commit"), Query(f"time() - max({_of(m.STEP_TIME)})", "step")),
    ),
    Panel(
        "Time blocked by saves", "timeseries", "percentunit", (m.BLOCKED_SECONDS,),
        (Query(f"max({_rate(m.BLOCKED_SECONDS)})", "slowest rank"),),
    ),
    Panel(
        "Failed saves", "timeseries", "none", (m.SAVE_FAILURES, m.ACCOUNTING_FAILURES),
        (
            Query(f"sum by (rank) (increase({_of(m.SAVE_FAILURES)}{RANGE})) > 0", "rank {{rank}}"),
            Query(f"increase({_of(m.ACCOUNTING_FAILURES)}{RANGE}) > 0", "goodput not accounted"),
        ),
    ),
    Panel(
        "Restarts", "timeseries", "none", (m.RESTARTS,),
        (Query(f"max by (layer) ({_of(m.RESTARTS)})", "{{layer}}"),),
    ),
    Panel(
        "Goodput, as others measure it", "timeseries", "percentunit", (m.GOODPUT,),
        (Query(f"max by (measure) ({_of(m.GOODPUT)})", "{{measure}}"),),
    ),
    Panel(
        "Age of the goodput above", "timeseries", "s", (m.GOODPUT_TIME,),
        (Query(f"time() - max({_of(m.GOODPUT_TIME)})", "last accounting"),),
    ),
)  # fmt: skip
"""The course of time, below it."""


def dashboard() -> Manifest:
    """Grafana's JSON model. It has two variables: the data source, and the run."""
    return {
        "uid": "holdfast",
        "title": "Holdfast",
        "tags": ["holdfast"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source_variable(), _run_variable()]},
        "panels": list(_placed()),
    }


def _placed() -> Iterator[Manifest]:
    """Panels from left to right, row by row."""
    number = count(1)
    top = 0
    for panels, height in ((STATS, STAT_HEIGHT), (COURSES, ROW_HEIGHT)):
        left = 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + height
            yield _panel(panel, next(number), {"x": left, "y": top, "w": panel.width, "h": height})
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Manifest:
    custom: Manifest = {"stacking": {"mode": "normal"}, "fillOpacity": 60} if panel.stacked else {}
    made: Manifest = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": "\n\n".join(metric.help for metric in panel.about),
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [_target(query, chr(ord("A") + index), panel) for index, query in enumerate(panel.queries)],
    }
    if panel.instant:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
    return made


def _target(query: Query, letter: str, panel: Panel) -> Manifest:
    return {
        "refId": letter,
        "datasource": DATA_SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or panel.title,
        "instant": panel.instant,
        "range": not panel.instant,
    }


def _data_source_variable() -> Manifest:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _run_variable() -> Manifest:
    query = f"label_values({m.STEPS_PLANNED.name}, {m.RUN})"
    return {
        "name": "run",
        "type": "query",
        "label": "Run",
        "datasource": DATA_SOURCE,
        "query": {"query": query, "refId": "run"},
        "definition": query,
        "refresh": 2,  # whenever the time range changes, so that a new run is there
        "sort": 1,
    }
