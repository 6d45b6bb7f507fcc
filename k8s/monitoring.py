"""What the Prometheus Operator and Grafana make of a job's metrics. Each has its switch: without the CRDs, or Grafana's
sidecar, these objects are refused, or do nothing.

Named after the run and not after the job: a new job of the run takes the place of the old one in them.
"""

from __future__ import annotations

import json

from holdfast import metrics
from holdfast.config import RunConfig, names
from holdfast.config.metrics import served_ports
from k8s.monitoring_alerts import alerts
from k8s.monitoring_dashboard import dashboard
from k8s.placement import Manifest
from k8s.pods import JOBSET_NAME

SCRAPE_INTERVAL = "30s"
"""rate() needs some in its window: the alerts' shortest is 15 minutes, Grafana makes its own four intervals long."""
DASHBOARD_NAME = "holdfast-dashboard"
"""One for all runs of a namespace: it asks which run to show."""
DASHBOARD_LABEL = {"grafana_dashboard": "1"}
"""What Grafana's sidecar looks for, by its default."""


def monitoring_objects(config: RunConfig, job: str) -> dict[str, Manifest]:
    """Stable name -> object; none where nothing is asked for."""
    objects = {}
    if config.metrics.prometheus_operator:
        objects = {"podmonitor": pod_monitor(config, job), "prometheusrule": prometheus_rule(config)}
    if config.metrics.grafana_dashboard:
        objects["dashboard"] = dashboard_config_map(config)
    return objects


def pod_monitor(config: RunConfig, job: str) -> Manifest:
    """Scrape every rank and the control pod of one JobSet. Targets of idle spares are down, as nothing runs in them."""
    ports = [f"{names.METRICS_PORT_NAME}-{rank}" for rank in range(len(served_ports(config)))]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(config, config.name),
        "spec": {
            "selector": {"matchLabels": {JOBSET_NAME: job}},
            "podMetricsEndpoints": [_endpoint(config, port) for port in (names.METRICS_PORT_NAME, *ports)],
        },
    }


def _endpoint(config: RunConfig, port: str) -> Manifest:
    return {
        "port": port,
        "interval": SCRAPE_INTERVAL,
        # `run` is set by target, for `up`, and served with each metric; equal as they are, only one must stay.
        "honorLabels": True,
        "relabelings": [
            {"targetLabel": metrics.RUN, "replacement": config.name},
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
        ],
    }


def prometheus_rule(config: RunConfig) -> Manifest:
    """The alerts of the run."""
    rules = [alert.rule(config.name) for alert in alerts(config)]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(config, config.name),
        "spec": {"groups": [{"name": f"holdfast-{config.name}", "rules": rules}]},
    }


def dashboard_config_map(config: RunConfig) -> Manifest:
    """The dashboard, for Grafana's sidecar."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": DASHBOARD_NAME,
            "namespace": config.cluster.namespace,
            "labels": {"app.kubernetes.io/name": "holdfast", **DASHBOARD_LABEL},
        },
        "data": {"holdfast.json": json.dumps(dashboard(), indent=1)},
    }


def _metadata(config: RunConfig, name: str) -> Manifest:
    # The operator's installation finds its objects by the second one.
    labels = {"app.kubernetes.io/name": "holdfast", "release": config.metrics.operator_release}
    return {"name": name, "namespace": config.cluster.namespace, "labels": labels}
