"""PodMonitor, alerts and dashboard: they are there when asked for, and none refers to what does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from holdfast import metrics
from holdfast.config import Problem, load_profile, names, profile_names
from holdfast.config.metrics import served_ports
from holdfast.local.manifest import read_documents
from k8s import monitoring_rules, rules
from k8s.main import ROOT
from k8s.monitoring import DASHBOARD_LABEL
from k8s.monitoring_alerts import CRITICAL, RUNBOOK, WARNING, alerts
from k8s.monitoring_dashboard import COLUMNS, COURSES, STATS, dashboard
from tests.k8s.conftest import Synth
from tests.k8s.job_view import Job, Object
from tests.k8s.promql import SERIES, unknown, uses

OPERATOR, DASHBOARD = "metrics.prometheus_operator=true", "metrics.grafana_dashboard=true"
Render = Callable[..., list[Object]]
PANELS = [*STATS, *COURSES]
ALERTS = {alert.name: alert for alert in alerts(load_profile("cpu-test"))}


def problems(objects: list[Object]) -> list[Problem]:
    """Those of the rules about monitoring; the others want the platform too."""
    return [problem for rule in monitoring_rules.RULES for problem in rule(objects)]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


# --- ports: what is served, who gets at it ---


@pytest.mark.parametrize("profile", profile_names())
def test_each_local_rank_has_a_port_and_is_told_of_the_same_one(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for role, count in ((names.CONTROL, 1), (names.WORKERS, job.config.cluster.ranks_per_node)):
        declared = [port for port in job.container(role)["ports"] if port["name"].startswith(names.METRICS_PORT_NAME)]
        told = job.environment(role)[names.ENV_METRICS]["value"].split(",")
        assert told == [f"0.0.0.0:{port['containerPort']}" for port in declared]
        assert len(told) == count
        assert all(len(port["name"]) <= 15 for port in declared), "Kubernetes' limit for names of ports"


def test_a_scraper_gets_at_the_metrics_and_at_nothing_else(render: Render) -> None:
    (policy,) = of_kind(render("llama3-8b-p5x2", "metrics.scraper_namespace=prom"), "NetworkPolicy")
    own, scraper = policy["spec"]["ingress"]
    assert list(own) == ["from"]
    assert scraper == {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}],
        "ports": [{"protocol": "TCP", "port": 9500, "endPort": 9507}],
    }


@pytest.mark.parametrize("off", ["metrics.port=0", "metrics.port=null"])
def test_without_a_port_nothing_is_served_and_nobody_is_let_in(render: Render, off: str) -> None:
    objects = render("cpu-test", off)
    job = Job(objects)
    assert names.ENV_METRICS not in job.environment(names.WORKERS)
    assert "ports" not in job.container(names.WORKERS)
    assert [port["name"] for port in job.container(names.CONTROL)["ports"]] == [names.STORE_PORT_NAME]
    assert len(of_kind(objects, "NetworkPolicy")[0]["spec"]["ingress"]) == 1


def test_without_a_namespace_only_the_job_itself_comes_in(render: Render) -> None:
    (policy,) = of_kind(render("cpu-test", "metrics.scraper_namespace=null"), "NetworkPolicy")
    assert len(policy["spec"]["ingress"]) == 1


def opened(rule: Object) -> Callable[[list[Object]], None]:
    def change(objects: list[Object]) -> None:
        of_kind(objects, "NetworkPolicy")[0]["spec"]["ingress"].append(rule)

    return change


NAMED = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
BREACHES: dict[str, Callable[[list[Object]], object]] = {
    "from anywhere": opened({"ports": [{"port": 9500}]}),
    "from every namespace": opened({"from": [{"namespaceSelector": {}}], "ports": [{"port": 9500}]}),
    "to every port": opened({"from": NAMED}),
    "to the store": opened({"from": NAMED, "ports": [{"port": names.STORE_PORT}]}),
    "to more than the metrics": opened({"from": NAMED, "ports": [{"port": 9500, "endPort": 9600}]}),
    "another job": lambda o: of_kind(o, "PodMonitor")[0]["spec"]["selector"]["matchLabels"].update(
        {"jobset.sigs.k8s.io/jobset-name": "other"}
    ),
    "a port that is not there": lambda o: of_kind(o, "PodMonitor")[0]["spec"]["podMetricsEndpoints"].append(
        {"port": "metrics-7"}
    ),
    "a port that nobody scrapes": lambda o: of_kind(o, "PodMonitor")[0]["spec"]["podMetricsEndpoints"].pop(),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_synthesis_refuses_what_lets_too_much_in_or_finds_nothing(render: Render, breach: str) -> None:
    objects = render("cpu-test", OPERATOR)
    assert problems(objects) == []
    BREACHES[breach](objects)
    assert len(problems(objects)) == 1
    assert set(monitoring_rules.RULES) <= set(rules.RULES)


# --- objects behind switches ---


def test_by_default_no_object_needs_an_operator_or_grafana(jobs: dict[str, Job], synthesized: dict[str, Any]) -> None:
    kinds = {item["kind"] for synth in synthesized.values() for item in synth.job_objects}
    assert kinds == {"ConfigMap", "JobSet", "NetworkPolicy", "PodDisruptionBudget"}


@pytest.mark.parametrize("profile", profile_names())
def test_the_objects_are_well_formed(render: Render, profile: str) -> None:
    objects = render(profile, OPERATOR, DASHBOARD)
    assert problems(objects) == []
    (monitor,), (rule,) = of_kind(objects, "PodMonitor"), of_kind(objects, "PrometheusRule")
    config = load_profile(profile)
    for item in (monitor, rule):
        assert item["apiVersion"] == "monitoring.coreos.com/v1"
        assert item["metadata"]["name"] == config.name, "a new job of the run takes the old one's place"
        assert item["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        assert set(item) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(monitor["spec"]) == {"selector", "podMetricsEndpoints"}
    assert len(monitor["spec"]["podMetricsEndpoints"]) == 1 + len(served_ports(config))
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert set(endpoint) == {"port", "interval", "honorLabels", "relabelings"}
    (group,) = rule["spec"]["groups"]
    assert [one["alert"] for one in group["rules"]] == [alert.name for alert in alerts(config)]
    for one in group["rules"]:
        assert set(one) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", one["for"])


def test_synthesis_writes_them_before_the_job_and_without_them_takes_them_away(
    main: Callable[..., Synth], tmp_path: Path
) -> None:
    made = main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": f"{OPERATOR}\n{DASHBOARD}"})
    assert made.code == 0, made.stderr
    more = {"10-podmonitor.yaml", "10-prometheusrule.yaml", "10-dashboard.yaml"}
    assert more <= made.files.keys()
    read_documents(made.job_objects)  # `holdfast run` takes the same files
    assert not more & main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test"}).files.keys()


def test_the_dashboard_is_one_config_map_for_all_runs(render: Render) -> None:
    made = [
        next(item for item in render(profile, DASHBOARD) if item["metadata"]["name"] == "holdfast-dashboard")
        for profile in ("cpu-test", "llama3-8b-p5x8")
    ]
    assert made[0] == made[1]
    kubernetes_validate.validate(made[0], "1.35", strict=True)
    assert DASHBOARD_LABEL.items() <= made[0]["metadata"]["labels"].items()
    assert json.loads(made[0]["data"]["holdfast.json"]) == dashboard()
    assert len(json.dumps(made[0])) < 256 * 1024, "kubectl apply keeps a copy in an annotation of at most that size"


# --- queries ---


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel.title))
def test_every_query_of_the_dashboard_uses_only_what_is_served(panel: Any) -> None:
    for query in panel.queries:
        assert unknown(query.expr) == set()
        assert "$run" in query.expr, "of one run, not of all"
        labels = {label for label, _ in uses(query.expr).labels}
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= labels | {"rank"}


@pytest.mark.parametrize("profile", ["cpu-test", "llama3-8b-p5x8"])
def test_every_alert_uses_only_what_is_served_and_keeps_the_run(profile: str) -> None:
    for alert in alerts(load_profile(profile)):
        assert unknown(alert.expr) == set(), alert.name
        selectors = alert.expr.count(f'{{run="{profile}"') + alert.expr.count(f'{{job_name=~"{profile}-[0-9a-f]+-')
        assert 0 < alert.expr.count("{") == selectors, "a selector of every run"


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    queries = [query.expr for panel in PANELS for query in panel.queries] + [alert.expr for alert in ALERTS.values()]
    assert set().union(*(uses(query).series for query in queries)) == SERIES.keys()


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("holdfast_stepp", {"holdfast_stepp"}),
        ("rate(holdfast_step_seconds[5m])", {"holdfast_step_seconds"}),
        ('holdfast_step{rnk="0"}', {"holdfast_step.rnk"}),
        ("sum by (bucket) (holdfast_step)", {"holdfast_step.bucket"}),
        ("holdfast_step / on (rank) holdfast_world_size", {"holdfast_world_size.rank"}),
        ("increase(max by (layer) (holdfast_loss)[1h:1m])", {"holdfast_loss.layer"}),
    ],
)
def test_a_wrong_name_or_label_in_a_query_is_found(query: str, wrong: set[str]) -> None:
    assert unknown(query) == wrong


def test_a_query_that_is_no_promql_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected type matrix"):
        uses("rate(holdfast_tokens_total)")


def test_the_names_follow_the_rules_of_prometheus() -> None:
    for metric in metrics.METRICS:
        assert re.fullmatch(r"holdfast(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".")
    assert len({metric.name for metric in metrics.METRICS}) == len(metrics.METRICS)


# --- alerts and panels as things for people ---


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_severity_a_summary_and_a_runbook_that_is_there(name: str) -> None:
    annotations = ALERTS[name].rule("cpu-test")["annotations"]
    assert ALERTS[name].severity in (CRITICAL, WARNING)
    assert "run" in annotations["summary"].lower()
    page, _, anchor = annotations["runbook"].partition("#")
    heads = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert anchor in {head.lower() for head in heads}


def test_the_page_has_no_section_for_an_alert_that_does_not_exist() -> None:
    heads = re.findall(r"^### (Holdfast\w+)$", (ROOT / RUNBOOK).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(heads) == sorted(ALERTS)


def test_a_run_that_saves_nothing_is_not_blamed_for_it() -> None:
    kept = {alert.name for alert in alerts(load_profile("cpu-test", ["checkpoint.mode=off"]))}
    assert ALERTS.keys() - kept == {"HoldfastCommitOverdue", "HoldfastSavesFail"}


@pytest.mark.parametrize(
    ("name", "override", "text"),
    [
        ("HoldfastNoProgress", "metrics.alert_no_progress_s=1234", "> 1234"),
        ("HoldfastCommitOverdue", "metrics.alert_commit_intervals=7.5", "> 7.5 * "),
        ("HoldfastRestartsOften", "metrics.alert_restarts_per_hour=9", "> 9"),
        ("HoldfastGoodputLow", "metrics.alert_goodput_ratio=0.66", "< 0.66"),
    ],
)
def test_the_limits_of_alerts_are_the_configs(name: str, override: str, text: str) -> None:
    found = {alert.name: alert for alert in alerts(load_profile("cpu-test", [override]))}
    assert text in found[name].expr and text not in ALERTS[name].expr


def test_the_panels_fill_the_grid_without_lying_on_one_another() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & mine, panel["title"]
        assert max(x for x, _ in mine) < COLUMNS
        cells |= mine
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(PANELS)


def test_every_panel_explains_its_numbers_by_the_metrics_it_shows() -> None:
    helps = {series: metric.help for metric in metrics.METRICS for series in metric.series}
    for panel, made in zip(PANELS, dashboard()["panels"], strict=True):
        shown = set().union(*(uses(query.expr).series for query in panel.queries))
        assert {helps[series] for series in shown} >= {metric.help for metric in panel.about}
        assert made["description"]
