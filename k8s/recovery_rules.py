"""Rules of how a JobSet recovers: exit codes, restarts, probes, disruption budgets, rendezvous. See rules.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.config import Problem, names
from k8s.pods import JOBSET_NAME, REPLICATED_JOB
from k8s.views import JobSetPod, Objects, Pod, containers, jobset_pods, of_kind, pods, run_config, title

_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def terminal_exit_codes_fail_the_job(objects: Objects) -> Iterator[Problem]:
    """78 and 93 end the Job at once and with it the JobSet; otherwise they repeat until the budget is gone."""
    for pod in jobset_pods(objects):
        rules = pod.job.get("podFailurePolicy", {}).get("rules", [])
        first = rules[0] if rules else {}
        codes = first.get("onExitCodes", {})
        right = first.get("action") == "FailJob" and codes.get("operator") == "In"
        if not right or sorted(codes.get("values", ())) != sorted(names.TERMINAL_CODES):
            why = f"its first rule must be FailJob on {list(names.TERMINAL_CODES)}"
            yield Problem(f"{pod.where}.podFailurePolicy", rules, why, "add the rule")
        elif codes.get("containerName") not in {container["name"] for container in pod.containers}:
            got = codes.get("containerName")
            yield Problem(f"{pod.where}.podFailurePolicy", got, "there is no such container", "name the pod's own")
    for item in of_kind(objects, "JobSet"):
        rules = item["spec"].get("failurePolicy", {}).get("rules", [])
        wanted = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        if not any(wanted.items() <= rule.items() for rule in rules):
            why = "a Job that failed for good must fail the JobSet"
            yield Problem(f"{title(item)}.failurePolicy", rules, why, "add the rule")


def failure_rules_have_legal_names(objects: Objects) -> Iterator[Problem]:
    """JobSet's webhook refuses dashes, and two rules of one name."""
    for item in of_kind(objects, "JobSet"):
        seen: set[str] = set()
        for rule in item["spec"].get("failurePolicy", {}).get("rules", []):
            name = rule.get("name", "")
            if not _RULE_NAME.fullmatch(name) or name in seen:
                why = "it is not a unique name of letters, digits and _,:"
                yield Problem(f"{title(item)}.failurePolicy.rules", name, why, "rename it")
            seen.add(name)


def disruptions_do_not_count_on_workers(objects: Objects) -> Iterator[Problem]:
    """A worker lost with its node is recreated for ever; a lost control pod is a new generation."""
    for pod in jobset_pods(objects):
        rules = pod.job.get("podFailurePolicy", {}).get("rules", [])
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]} in rules
        if ignored != (pod.role == names.WORKERS):
            fix = "ignore DisruptionTarget on workers only"
            yield Problem(f"{pod.where}.podFailurePolicy", rules, "a lost worker is replaced, a lost store is not", fix)
        limit = pod.job.get("backoffLimit", 6)
        if (limit == 0) == (pod.role == names.WORKERS):
            why = "workers retry, the store does not"
            yield Problem(f"{pod.where}.backoffLimit", limit, why, "use 0 for control only")


def failed_pods_are_replaced_not_restarted(objects: Objects) -> Iterator[Problem]:
    """With a podFailurePolicy Kubernetes accepts nothing else; without it kubelet and launcher would both restart."""
    for pod in pods(objects):
        if pod.job is None or "podFailurePolicy" not in pod.job:
            continue
        if pod.spec.get("restartPolicy") != "Never":
            got = pod.spec.get("restartPolicy")
            yield Problem(f"{pod.where}.restartPolicy", got, "podFailurePolicy needs Never", "use Never")
        if pod.job.get("podReplacementPolicy") != "Failed":
            why = "two live pods of one node rank break the rendezvous"
            yield Problem(f"{pod.where}.podReplacementPolicy", pod.job.get("podReplacementPolicy"), why, "use Failed")


def each_job_is_one_indexed_pod(objects: Objects) -> Iterator[Problem]:
    """One Job per node: the index gives the stable host name, and one stuck node holds up one Job."""
    for pod in jobset_pods(objects):
        shape = (pod.job.get("completionMode"), pod.job.get("completions"), pod.job.get("parallelism"))
        if shape != ("Indexed", 1, 1):
            yield Problem(f"{pod.where}.completionMode", shape, "it must be one Indexed pod", "use Indexed, 1 and 1")


def no_liveness_probe_judges_training(objects: Objects) -> Iterator[Problem]:
    """The rank monitors decide what a hang is; a kubelet would kill a long restore."""
    for where, container in containers(jobset_pods(objects)):
        for probe in ("livenessProbe", "startupProbe"):
            if probe in container:
                yield Problem(f"{where}.{probe}", container[probe], "NVRx detects hangs", "remove it")


def ranks_end_before_the_pod_is_killed(objects: Objects) -> Iterator[Problem]:
    """The launcher's own SIGKILL must come before the kubelet's, or a save is cut; the store must be there as long."""
    config = run_config(objects)
    for pod in jobset_pods(objects):
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        if config and config.recovery.term_timeout_s >= grace:
            why = f"recovery.term_timeout_s={config.recovery.term_timeout_s} must be below it"
            yield Problem(f"{pod.where}.terminationGracePeriodSeconds", grace, why, "raise it")


def disruption_budgets_are_whole_numbers(objects: Objects) -> Iterator[Problem]:
    """A Job has no scale subresource: percentages and maxUnavailable never allow an eviction."""
    replicas = {_labels(pod): pod.replicas for pod in jobset_pods(objects)}
    for item in of_kind(objects, "PodDisruptionBudget"):
        spec, key = item["spec"], f"{title(item)}.minAvailable"
        keep = spec.get("minAvailable")
        if "maxUnavailable" in spec or type(keep) is not int:
            yield Problem(key, keep, "only a whole minAvailable works for the pods of a Job", "use a whole number")
            continue
        selector = spec.get("selector", {}).get("matchLabels", {})
        count = replicas.get((selector.get(JOBSET_NAME), selector.get(REPLICATED_JOB)))
        if count is None:
            fix = "name the JobSet and the replicated job"
            yield Problem(f"{title(item)}.selector", selector, "it selects no replicated job here", fix)
        elif keep > count:
            yield Problem(key, keep, f"there are {count} pods, so no eviction is ever allowed", f"use at most {count}")


def _labels(pod: JobSetPod) -> tuple[str | None, str | None]:
    return pod.jobset["metadata"]["name"], pod.role


def the_launcher_range_holds_every_pod(objects: Objects) -> Iterator[Problem]:
    """--nnodes=MIN:MAX. A pod above MAX closes the rendezvous; fewer pods than MIN never open it."""
    config = run_config(objects)
    for pod in jobset_pods(objects):
        if config and pod.role == names.WORKERS and not config.cluster.nodes <= pod.replicas <= config.max_nodes:
            why = f"the launcher takes {config.cluster.nodes} to {config.max_nodes} nodes"
            yield Problem(f"{pod.where}.replicas", pod.replicas, why, "use nodes + spares")


def pods_find_one_another(objects: Objects) -> Iterator[Problem]:
    """DNS names exist before pods are ready, and every name and port in a variable is one of this JobSet's pods."""
    for item in of_kind(objects, "JobSet"):
        name, network = item["metadata"]["name"], item["spec"].get("network", {})
        for switch in ("enableDNSHostnames", "publishNotReadyAddresses"):
            if network.get(switch) is not True:
                why = "the store has no address otherwise"
                yield Problem(f"{title(item)}.network.{switch}", network.get(switch), why, "use true")
        domain = f".{network.get('subdomain', name)}"
        ports = {f"{host}{domain}": pod_ports for pod in jobset_pods([item]) for host, pod_ports in _hosts(pod)}
        for pod in jobset_pods([item]):
            if pod.spec.get("hostNetwork"):
                yield Problem(f"{pod.where}.hostNetwork", True, "two jobs would share one store port", "remove it")
            for variable, value in _addresses(pod, domain):
                host, _, port = value.partition(":")
                if host not in ports or (port and int(port) not in ports[host]):
                    why = f"no pod of the JobSet has this name and port; control is {name}-{names.CONTROL}-0-0{domain}"
                    yield Problem(f"{pod.where}.env.{variable}", value, why, "use its name and port")


def _hosts(pod: JobSetPod) -> list[tuple[str, set[int]]]:
    """Host names of the pods that a template becomes, with the ports that they declare."""
    ports = {int(port["containerPort"]) for container in pod.containers for port in container.get("ports", ())}
    return [(f"{pod.jobset['metadata']['name']}-{pod.role}-{index}-0", ports) for index in range(pod.replicas)]


def _addresses(pod: Pod, domain: str) -> list[tuple[str, str]]:
    """Variables that hold an address: the store's in any case, and whatever names the JobSet's domain."""
    found = [(env["name"], env.get("value") or "") for c in pod.containers for env in c.get("env", ())]
    return [(name, value) for name, value in found if name == names.ENV_STORE or domain in value]


def references_resolve(objects: Objects) -> Iterator[Problem]:
    """Volumes, the ConfigMap, priority class, account and namespace, and the jobs that a JobSet's own fields name."""
    here = {title(item) for item in objects}
    for pod in jobset_pods(objects):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", ())}
        wanted = {mount["name"] for container in pod.containers for mount in container.get("volumeMounts", ())}
        for name in sorted(wanted ^ volumes):
            yield Problem(f"{pod.where}.volumes", name, "it is not both declared and mounted", "do both or neither")
        used = [f"ConfigMap/{v['configMap']['name']}" for v in pod.spec.get("volumes", ()) if "configMap" in v]
        used += [f"PriorityClass/{pod.spec['priorityClassName']}"] if "priorityClassName" in pod.spec else []
        used += [f"ServiceAccount/{pod.spec['serviceAccountName']}"] if "serviceAccountName" in pod.spec else []
        used += [f"Namespace/{pod.jobset['metadata'].get('namespace')}"]
        for reference in used:
            if reference not in here and not reference.startswith("PriorityClass/system-"):
                yield Problem(pod.where, reference, "it is not among the objects", "add it")
    for item in of_kind(objects, "JobSet"):
        jobs = [replicated["name"] for replicated in item["spec"]["replicatedJobs"]]
        for name in item["spec"].get("successPolicy", {}).get("targetReplicatedJobs", []):
            if name not in jobs:
                yield Problem(f"{title(item)}.successPolicy", name, f"there are only {jobs}", "name one of them")
        for index, replicated in enumerate(item["spec"]["replicatedJobs"]):
            for name in (dependency["name"] for dependency in replicated.get("dependsOn", ())):
                if name not in jobs[:index]:
                    why = f"before {replicated['name']} there are only {jobs[:index]}"
                    yield Problem(f"{title(item)}.dependsOn", name, why, "name an earlier job")


RULES = (
    terminal_exit_codes_fail_the_job,
    failure_rules_have_legal_names,
    disruptions_do_not_count_on_workers,
    failed_pods_are_replaced_not_restarted,
    each_job_is_one_indexed_pod,
    no_liveness_probe_judges_training,
    ranks_end_before_the_pod_is_killed,
    disruption_budgets_are_whole_numbers,
    the_launcher_range_holds_every_pod,
    pods_find_one_another,
    references_resolve,
)
