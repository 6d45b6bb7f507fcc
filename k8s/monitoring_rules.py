"""Rules about metrics: what a scraper may reach, and that it finds what it is told to look for."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config import Problem, names
from k8s.pods import JOBSET_NAME
from k8s.views import Object, Objects, containers, jobset_pods, of_kind, title


def outsiders_get_at_metrics_only(objects: Objects) -> Iterator[Problem]:
    """Who is not of the job comes from a namespace that is named, to metrics ports that are declared."""
    declared = set(_metrics_ports(objects).values())
    for item in of_kind(objects, "JobSet"):
        own = {"matchLabels": {JOBSET_NAME: item["metadata"]["name"]}}
        for policy in of_kind(objects, "NetworkPolicy"):
            if policy["spec"].get("podSelector") != own:
                continue
            for rule in policy["spec"].get("ingress", []):
                if rule != {"from": [{"podSelector": own}]} and not _narrow(rule, declared):
                    why = f"it lets outsiders in to more than the metrics at {sorted(declared)}, or from anywhere"
                    fix = "name a namespace and these ports"
                    yield Problem(f"{title(policy)}.ingress", rule, why, fix)


def monitors_find_their_ports(objects: Objects) -> Iterator[Problem]:
    """A PodMonitor goes by names of ports and labels of pods; one that matches nothing is silent."""
    for monitor in of_kind(objects, "PodMonitor"):
        jobs = [item["metadata"]["name"] for item in of_kind(objects, "JobSet")]
        selected = monitor["spec"]["selector"].get("matchLabels", {}).get(JOBSET_NAME)
        if selected not in jobs:
            yield Problem(f"{title(monitor)}.selector", selected, "no such JobSet is here", f"use one of {jobs}")
        asked = {endpoint.get("port") for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        missing = sorted(set(_metrics_ports(objects)) ^ asked, key=str)
        if missing:
            why = f"{', '.join(map(str, missing))}: declared by no container, or scraped by nobody"
            yield Problem(f"{title(monitor)}.podMetricsEndpoints", sorted(map(str, asked)), why, "name the same ports")


def _metrics_ports(objects: Objects) -> dict[str, int]:
    """Name -> number of every metrics port of the job's containers."""
    ports = [port for _, container in containers(jobset_pods(objects)) for port in container.get("ports", ())]
    named = [(str(port.get("name", "")), int(port["containerPort"])) for port in ports]
    return {name: number for name, number in named if name.partition("-")[0] == names.METRICS_PORT_NAME}


def _narrow(rule: Object, declared: set[int]) -> bool:
    sources, ports = rule.get("from", []), rule.get("ports", [])
    named = all(source.get("namespaceSelector", {}).get("matchLabels") for source in sources)
    spans = [range(port["port"], port.get("endPort", port["port"]) + 1) for port in ports if "port" in port]
    inside = len(spans) == len(ports) and all(set(span) <= declared for span in spans)
    return bool(sources) and named and bool(ports) and inside


RULES = (outsiders_get_at_metrics_only, monitors_find_their_ports)
"""In the order in which they are reported."""
