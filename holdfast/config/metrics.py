"""The section about live metrics: where they are served, who may fetch them, what is made of them on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from holdfast.config import names
from holdfast.config.problems import Problem
from holdfast.config.section import Real, Seconds, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig

LOWEST_PORT = 1024
"""Below it, only root may listen."""


class Metrics(Section):
    """Prometheus metrics of ranks and control pod. The names are in holdfast/metrics.py."""

    port: Annotated[Whole, Field(ge=0, le=65_000)] | None = 9500
    """Each rank serves its metrics on this port + its local rank, the control pod on this port. 0 or null: none."""
    scraper_namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = "monitoring"
    """Namespace whose pods the job's NetworkPolicy lets in to fetch metrics. Null: nobody from outside the job."""
    goodput_interval_s: Seconds = 60
    """The control pod accounts the event logs again so long after it has done so the last time. Goodput changes slowly,
    and the accounting of a long run reads much."""
    goodput_limit_s: Seconds = 120
    """One accounting may take so long. It runs in a process of its own with the lowest priority, and is killed then."""
    goodput_memory_mib: Annotated[Whole, Field(ge=256, le=65_536)] = 1200
    """One accounting may allocate so much: 1,000 ranks x 10,000 steps take 1,030 (bench/results/cpu/ledger_scale.json).
    The memory of the control pod grows with it."""
    prometheus_operator: bool = False
    """Also write a PodMonitor and a PrometheusRule. The cluster must have the Prometheus Operator's CRDs, or `kubectl
    apply` refuses them."""
    operator_release: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "kube-prometheus-stack"
    """Value of the label `release` on both. An operator that Helm has installed looks only at objects with the name of
    its own release."""
    grafana_dashboard: bool = False
    """Also write a ConfigMap with a dashboard, labelled so that Grafana's sidecar loads it."""
    alert_commit_intervals: Annotated[Real, Field(ge=1.5, le=100)] = 3.0
    """Alert when the newest commit is older than so many times the time between two saves."""
    alert_no_progress_s: Seconds = 900
    """Alert when no rank has finished a step for so long. A hang is over much earlier, by a restart; this is for what
    no layer cures."""
    alert_restarts_per_hour: Annotated[Whole, Field(ge=1, le=1000)] = 4
    """Alert when one layer has restarted more often than this in the last hour."""
    alert_goodput_ratio: Annotated[Real, Field(gt=0, lt=1)] = 0.8
    """Alert when less than this part of a run's time, since its first finished step, has trained."""


def metrics_problems(c: RunConfig) -> Iterator[Problem]:
    """What lies between the section and others."""
    port, ranks = c.metrics.port, c.cluster.ranks_per_node
    if not port:
        for key in ("prometheus_operator", "grafana_dashboard"):
            if getattr(c.metrics, key):
                why = f"metrics.port={port} serves none"
                yield Problem(f"metrics.{key}", True, why, "set metrics.port, or turn it off")
        return
    if port < LOWEST_PORT:
        yield Problem("metrics.port", port, "only root may listen there", f"use at least {LOWEST_PORT}, or 0 for none")
    longest, limit = c.recovery.step_section_timeout_s, c.metrics.alert_no_progress_s
    if limit <= longest:
        why = f"a step may last recovery.step_section_timeout_s={longest:g}"
        yield Problem("metrics.alert_no_progress_s", limit, why, f"use more than {longest:g}")
    taken = {names.STORE_PORT, names.STORE_PORT + 1} & set(range(port, port + ranks))
    if taken:
        why = f"cluster.ranks_per_node={ranks} ports from it on would hold {min(taken)}, which is the store's"
        yield Problem("metrics.port", port, why, f"use at most {names.STORE_PORT - ranks}")


def served_ports(config: RunConfig) -> tuple[int, ...]:
    """Port of each local rank's metrics; empty where none are served."""
    port = config.metrics.port
    return tuple(range(port, port + config.cluster.ranks_per_node)) if port else ()
