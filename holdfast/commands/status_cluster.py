"""`kubectl get jobset,job,pod,node -o json | holdfast status`: what runs where on a cluster, what has restarted and
why, and what to do next. Reads what kubectl has printed, and needs no access to the cluster itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from holdfast.commands.cluster_objects import (
    COMMAND,
    ClusterFacts,
    Ended,
    JobSetFacts,
    NodeFacts,
    PodFacts,
    read_cluster,
)
from holdfast.commands.status import RUNBOOK
from holdfast.config import ConfigError, Problem, names
from holdfast.terminal import record_named_in

MEANINGS = {
    names.EXIT_COMPLETE: "complete",
    names.EXIT_RETRY: "failed; a new pod may cure it",
    names.EXIT_PREEMPTED: "left in order: SIGTERM, the end of the capacity, or another generation owns the run",
    names.EXIT_CONFIG: "wrong input; no restart cures it",
    names.EXIT_GIVE_UP: "the stop rule: it would fail again",
    137: "killed (SIGKILL)",
    143: "ended by SIGTERM before it could leave in order",
}
"""Exit codes of a pod; the page about operations has what to do."""
REPEATED = 3
"""A seat whose pods have failed so often does not fail by chance."""
CLOSE = 2
"""Generations that are left when somebody should know."""
MOST_SHOWN = 40
"""Longer lists of pods or nodes are cut, those without a problem first."""
WIDTH = 160


def main(stream: TextIO) -> int:
    """Exit code 0, or 2 through ConfigError."""
    if stream.isatty():
        fix = f"name the folder of a run, or pipe the state of a cluster into it: {COMMAND}"
        raise ConfigError([Problem("DIR", "", "nothing is named, and nothing is piped in", fix)], "no status")
    try:
        text = stream.read()
    except UnicodeDecodeError as error:
        fix = "give kubectl the option -o json"
        raise ConfigError([Problem("stdin", "", f"it is no text ({error.reason})", fix)], "no cluster state") from None
    for line in report(read_cluster(text)):
        print(line)
    return 0


def report(facts: ClusterFacts) -> Iterator[str]:
    """The lines to print."""
    for jobset in facts.jobsets:
        pods = [pod for pod in facts.pods if pod.jobset == jobset.key]
        yield f"jobset {jobset.name} in {jobset.namespace}: {_state(jobset)}"
        yield f"  restarted {jobset.restarts} times; {jobset.counted_restarts} of {jobset.max_restarts} are used up"
        for name, (ready, wanted) in jobset.counts.items():
            yield f"  {name}: {ready} of {wanted} ready"
        yield from _cut([_pod_line(pod, facts) for pod in sorted(pods, key=_is_well)], "pods")
    nodes = _shown_nodes(facts)
    if nodes:
        yield "nodes"
        yield from _cut([f"  {node.name}: {_node_state(node, facts)}" for node in nodes], "nodes")
    yield "next"
    yield from (f"  - {line}" for line in dict.fromkeys(advice(facts)))


def advice(facts: ClusterFacts) -> list[str]:
    """What to do, most urgent first; never empty."""
    found = [line for jobset in facts.jobsets for line in _for_jobset(jobset, facts)]
    over = {jobset.key for jobset in facts.jobsets if jobset.terminal}
    live = [pod for pod in facts.pods if pod.jobset not in over]
    found += [line for pod in live for line in _for_pod(pod, facts)]
    found += [line for node in _shown_nodes(facts) for line in _for_node(node, live)]
    return found or ["nothing to do"]


def _for_jobset(jobset: JobSetFacts, facts: ClusterFacts) -> Iterator[str]:
    ends = [pod.ended for pod in facts.pods if pod.jobset == jobset.key and pod.ended]
    if jobset.terminal == "Failed" and {ended.code for ended in ends} & set(names.TERMINAL_CODES):
        yield _way_on(jobset, ends)
    elif jobset.terminal == "Failed":
        yield (
            f"{jobset.name} has failed: the last line of each pod's log says why (kubectl logs POD); then delete it "
            "and apply job/ again"
        )
    elif not jobset.terminal and jobset.suspended:
        patch = """'{"spec": {"suspend": false}}'"""
        yield f"it is suspended: kubectl patch jobset {jobset.name} -n {jobset.namespace} --type merge -p {patch}"
    elif not jobset.terminal and jobset.max_restarts - jobset.counted_restarts <= CLOSE:
        left = max(0, jobset.max_restarts - jobset.counted_restarts)
        yield f"{jobset.name} may restart {left} more times (recovery.max_generations): find out why it does"


def _way_on(jobset: JobSetFacts, ends: list[Ended]) -> str:
    """The pods that found the record have its id at the end of what they said; one that wrote it may not."""
    said = (record_named_in(ended.message) for ended in ends if ended.code in names.TERMINAL_CODES)
    record = next(filter(None, said), None)
    clear = "clear its record" if record is None else f'add `resume: {{clear_terminal: "{record}"}}` to the profile'
    return (
        f"{jobset.name} has ended for good: mend the cause above, {clear}, delete the JobSet, synthesize and apply "
        f"job/: {RUNBOOK}#a-run-that-has-ended-for-good"
    )


def _for_pod(pod: PodFacts, facts: ClusterFacts) -> Iterator[str]:
    if pod.unschedulable:
        yield f"{pod.name} waits for a node, the others for it up to recovery.join_timeout_s: see to capacity"
    elif pod.waits_for:
        yield f"{pod.name} cannot start: {_short(pod.waits_for)} (kubectl describe pod {pod.name})"
    if pod.ended and pod.ended.reason == "OOMKilled":
        yield f"{pod.name} ran out of memory: more nodes, a smaller batch, or a type with more memory"
    failed = facts.failed_pods.get((pod.jobset, pod.seat), 0)
    if failed >= REPEATED:
        yield f"{failed} pods of seat {pod.seat} have failed: read what they said; if it is the node, cordon it"
    known = {node.name for node in facts.nodes}
    if known and pod.node and pod.node not in known and not pod.ended:
        yield f"{pod.name} was on {pod.node}, which is gone: Kubernetes replaces the pod by itself"


def _for_node(node: NodeFacts, live: list[PodFacts]) -> Iterator[str]:
    held = [pod.name for pod in live if pod.node == node.name and pod.phase in ("Running", "Pending")]
    if not node.ready and held:
        yield (
            f"{node.name} is not ready: its pod leaves it after 60 s and a spare takes over. If the instance is gone "
            f"for good and the pod stays: kubectl delete node {node.name}"
        )
    elif node.problems and held:
        yield f"{node.name} is unwell: node repair replaces it; until then kubectl cordon {node.name} keeps pods away"
    elif node.cordoned and held:
        yield f"{node.name} is cordoned: a drain lets its ranks save and leave; kubectl uncordon {node.name} keeps it"
    if names.STORAGE_TAINT in node.taints:
        yield f"{node.name} cannot mount FSx yet; if that lasts, look at the FSx CSI driver's pod on it"


def _state(jobset: JobSetFacts) -> str:
    if jobset.terminal:
        return f"{jobset.terminal}{f', {jobset.why}' if jobset.why else ''}"
    return "suspended" if jobset.suspended else "running"


def _pod_line(pod: PodFacts, facts: ClusterFacts) -> str:
    state = pod.phase + (", leaving" if pod.leaving else "") + (", ready" if pod.ready else "")
    where = f" on {pod.node}" if pod.node else ""
    failed = facts.failed_pods.get((pod.jobset, pod.seat), 0)
    before = f", {failed} pods failed before" if failed and not pod.ended else ""
    said = f"; {_short(pod.waits_for)}" if pod.waits_for else f"; {meaning(pod.ended)}" if pod.ended else ""
    return f"  {pod.seat}: {state}{where}{before} ({pod.name}, attempt {pod.attempt}){said}"


def meaning(ended: Ended) -> str:
    """How a container ended: the code, what it means here, and what it said."""
    means = "ran out of memory" if ended.reason == "OOMKilled" else MEANINGS.get(ended.code, ended.reason or "unknown")
    last = ended.message.splitlines()[-1] if ended.message else ""
    return f"exit code {ended.code}, {means}{f': {_short(last)}' if last else ''}"


def _node_state(node: NodeFacts, facts: ClusterFacts) -> str:
    leaving = any(pod.leaving for pod in facts.pods if pod.node == node.name)
    parts = ["ready" if node.ready else "NOT READY"]
    parts += [("draining" if leaving else "cordoned")] * node.cordoned
    parts += [_short(problem) for problem in node.problems]
    parts += [f"tainted {', '.join(node.taints)}"] * bool(node.taints)
    return "; ".join(parts)


def _shown_nodes(facts: ClusterFacts) -> list[NodeFacts]:
    """Nodes of our groups, and those with pods of the run; the unwell ones first."""
    used = {pod.node for pod in facts.pods}
    nodes = [node for node in facts.nodes if node.ours or node.name in used]
    return sorted(nodes, key=lambda node: (node.ready and not node.problems and not node.cordoned, node.name))


def _is_well(pod: PodFacts) -> bool:
    return pod.ready and not pod.leaving


def _cut(lines: list[str], what: str) -> Iterator[str]:
    yield from lines[:MOST_SHOWN]
    if len(lines) > MOST_SHOWN:
        yield f"  ... and {len(lines) - MOST_SHOWN} more {what}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= WIDTH else flat[: WIDTH - 3] + "..."
