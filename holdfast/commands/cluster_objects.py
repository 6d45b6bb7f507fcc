"""What `kubectl get jobset,job,pod,node -o json` says, as the few facts that matter to a run. Field names are those of
the Kubernetes and JobSet APIs. A field that is absent, or of another type, counts as not said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.config import ConfigError, Problem, names

COMMAND = "kubectl get jobset,job,pod,node -n NAMESPACE -o json | holdfast status"
_JOBSET = "jobset.sigs.k8s.io"
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_EXPECTED_TAINTS = {names.GPU_TAINT}
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a container ended. message: what it left for Kubernetes to show; may be empty."""

    code: int
    reason: str
    message: str


@dataclass(frozen=True)
class PodFacts:
    """One pod of a run."""

    name: str
    jobset: str
    """JobSetFacts.key."""
    seat: str
    """Replicated job and index: `workers-3`."""
    attempt: str
    """How many times the JobSet had been restarted when it was made."""
    node: str
    phase: str
    ready: bool
    leaving: bool
    """It was asked to end."""
    waits_for: str
    """Why it does not run yet; empty if it does, or nobody says why."""
    unschedulable: bool
    ended: Ended | None


@dataclass(frozen=True)
class NodeFacts:
    """One node. problems: what Kubernetes or a health agent says against it."""

    name: str
    ready: bool
    cordoned: bool
    problems: tuple[str, ...]
    taints: tuple[str, ...]
    ours: bool
    """Of one of our node groups."""


@dataclass(frozen=True)
class JobSetFacts:
    """One JobSet of Holdfast. counts: replicated job -> (ready, wanted)."""

    name: str
    namespace: str
    terminal: str
    """Completed, Failed, or empty."""
    why: str
    suspended: bool
    restarts: int
    counted_restarts: int
    max_restarts: int
    counts: Mapping[str, tuple[int, int]]

    @property
    def key(self) -> str:
        """Tells it from one of the same name in another namespace."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ClusterFacts:
    """Everything. failed_pods: seat -> pods that its Job has seen fail, by JobSet."""

    jobsets: tuple[JobSetFacts, ...]
    pods: tuple[PodFacts, ...]
    nodes: tuple[NodeFacts, ...]
    failed_pods: Mapping[tuple[str, str], int]


def read_cluster(text: str) -> ClusterFacts:
    """The facts in kubectl's JSON. Raises ConfigError if it is none, or no JobSet of Holdfast is in it."""
    items = list(_items(text))
    jobsets = [
        item for item in items if item["kind"] == "JobSet" and _label(item, "app.kubernetes.io/name") == "holdfast"
    ]
    if not jobsets:
        kinds = ", ".join(sorted({item["kind"] for item in items})) or "nothing"
        raise _refusal(f"it holds {kinds}, and no JobSet of Holdfast", "name the namespace of the job")
    facts = tuple(map(_jobset, jobsets))
    mine = {jobset.key for jobset in facts}
    pods = [item for item in items if item["kind"] == "Pod" and _owner(item) in mine]
    jobs = [item for item in items if item["kind"] == "Job" and _owner(item) in mine]
    failed = {(_owner(job), _seat(job)): _whole(job, "status", "failed") for job in jobs}
    return ClusterFacts(
        jobsets=facts,
        pods=tuple(sorted(map(_pod, pods), key=lambda pod: (pod.jobset, _numbered(pod.seat), pod.name))),
        nodes=tuple(_node(item) for item in items if item["kind"] == "Node"),
        failed_pods=failed,
    )


def _items(text: str) -> Iterator[Object]:
    if not text.strip():
        raise _refusal("it is empty", f"pipe into it: {COMMAND}")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not JSON ({error})", "give kubectl the option -o json") from None
    if not isinstance(whole, dict):
        raise _refusal("it is no Kubernetes object", f"pipe into it: {COMMAND}")
    items = whole.get("items") if "items" in whole else [whole]
    if not isinstance(items, list):
        raise _refusal("its items are no list", f"pipe into it: {COMMAND}")
    for index, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or not _name(item):
            raise _refusal(f"items.{index} is no Kubernetes object", f"pipe into it: {COMMAND}")
        yield item


def _refusal(why: str, fix: str) -> ConfigError:
    return ConfigError([Problem("stdin", "", why, fix)], "no cluster state")


def _jobset(item: Object) -> JobSetFacts:
    status = _section(item, "status")
    why = next((_reason(c) for c in _list(status, "conditions") if _true(c) and c.get("type") == "Failed"), "")
    ready = {_text(one, "name"): _whole(one, "ready") for one in _list(status, "replicatedJobsStatus")}
    wanted = {_text(one, "name"): _whole(one, "replicas") for one in _list(_section(item, "spec"), "replicatedJobs")}
    restarts = _whole(status, "restarts")
    return JobSetFacts(
        name=_name(item),
        namespace=_text(item, "metadata", "namespace"),
        terminal=_text(status, "terminalState"),
        why=why,
        suspended=_section(item, "spec").get("suspend") is True,
        restarts=restarts,
        counted_restarts=_whole(status, "restartsCountTowardsMax") if "restartsCountTowardsMax" in status else restarts,
        max_restarts=_whole(item, "spec", "failurePolicy", "maxRestarts"),
        counts={name: (ready.get(name, 0), replicas) for name, replicas in wanted.items()},
    )


def _pod(item: Object) -> PodFacts:
    status = _section(item, "status")
    conditions = {_text(one, "type"): one for one in _list(status, "conditions")}
    containers = _list(status, "containerStatuses")
    waiting = [_section(one, "state", "waiting") for one in containers]
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    waits = _text(scheduled, "message") if unschedulable else next((_reason(one) for one in waiting if one), "")
    return PodFacts(
        name=_name(item),
        jobset=_owner(item),
        seat=_seat(item),
        attempt=_label(item, f"{_JOBSET}/restart-attempt"),
        node=_text(item, "spec", "nodeName"),
        phase=_text(status, "phase") or "Unknown",
        ready=_true(conditions.get("Ready", {})),
        leaving="deletionTimestamp" in _section(item, "metadata"),
        waits_for=waits,
        unschedulable=unschedulable,
        ended=next((ended for ended in map(_ended, containers) if ended), None),
    )


def _ended(container: Object) -> Ended | None:
    terminated = _section(container, "state", "terminated")
    if not terminated:
        return None
    return Ended(_whole(terminated, "exitCode"), _text(terminated, "reason"), _text(terminated, "message").strip())


def _node(item: Object) -> NodeFacts:
    conditions = [one for one in _list(_section(item, "status"), "conditions") if _text(one, "type")]
    ready = any(one["type"] == "Ready" and _true(one) for one in conditions)
    # Besides Kubernetes' own conditions those of a health agent, which all end in Ready: AcceleratedHardwareReady ...
    problems = [
        f"{one['type']}={_text(one, 'status')}: {_reason(one)}"
        for one in conditions
        if (one["type"].endswith("Ready") and not _true(one)) or (one["type"] in _PRESSURES and _true(one))
    ]
    spec = _section(item, "spec")
    taints = [_text(one, "key") for one in _list(spec, "taints") if _text(one, "key") not in _EXPECTED_TAINTS]
    return NodeFacts(
        name=_name(item),
        ready=ready,
        cordoned=spec.get("unschedulable") is True,
        problems=tuple(problems),
        taints=tuple(taints),
        ours=bool(_label(item, names.POOL_LABEL)),
    )


def _owner(item: Object) -> str:
    """Key of the JobSet that a Job or pod belongs to."""
    return f"{_text(item, 'metadata', 'namespace')}/{_label(item, f'{_JOBSET}/jobset-name')}"


def _seat(item: Object) -> str:
    return f"{_label(item, f'{_JOBSET}/replicatedjob-name')}-{_label(item, f'{_JOBSET}/job-index')}"


def _numbered(seat: str) -> tuple[str, int]:
    role, _, index = seat.rpartition("-")
    return role, int(index) if index.isdigit() else -1


def _reason(item: Object) -> str:
    """`Reason: message` of a condition or of a waiting container, as far as there is either."""
    return ": ".join(part for part in (_text(item, "reason"), " ".join(_text(item, "message").split())) if part)


def _true(condition: Object) -> bool:
    return condition.get("status") == "True"


def _name(item: Object) -> str:
    return _text(item, "metadata", "name")


def _label(item: Object, label: str) -> str:
    return _text(_section(item, "metadata", "labels"), label)


def _section(item: Object, *path: str) -> dict[str, Any]:
    value: Any = item
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}


def _list(item: Object, key: str) -> list[dict[str, Any]]:
    value = item.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(item: Object, *path: str) -> str:
    value = _section(item, *path[:-1]).get(path[-1]) if len(path) > 1 else item.get(path[-1])
    return value if isinstance(value, str) else ""


def _whole(item: Object, *path: str) -> int:
    value = _section(item, *path[:-1]).get(path[-1]) if len(path) > 1 else item.get(path[-1])
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
