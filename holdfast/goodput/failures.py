"""What went wrong and how long it took to get over it: failures, recoveries, and the seconds of each part of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.goodput.attempts import IN_PROCESS, Attempt, changed
from holdfast.goodput.timeline import Event, Timeline

PARTS = ("noticed", "stopped", "started", "imported", "group", "model", "restored", "first_step")
"""A restart in order. The seconds of a part end when the slowest rank has done it; together they are the recovery time.

noticed: first evidence; stopped: old ranks gone; started: new processes exist (in process: the function is entered
again); imported: torch and the rest; group: process group; model: model, optimizer and data; restored: state.
"""

UNKNOWN, PREEMPTED = "unknown", "preempted"


@dataclass(frozen=True)
class Fault:
    """One injected fault, or (kind `unknown` or `preempted`, empty id) a failure that nobody injected."""

    id: str
    kind: str
    rank: int | None
    step: int | None
    at: float
    """Job seconds. Unknown failures: the end of the last finished step, so the times since then are upper bounds."""


@dataclass(frozen=True)
class Failure:
    """The end of an attempt that was not meant to end. `attempt` indexes the reigning attempts, -1 before the first."""

    attempt: int
    faults: tuple[Fault, ...]
    noticed: float
    evident: bool
    """False if nothing noticed it within the log; `noticed` is the end of the log then."""

    @property
    def at(self) -> float:
        """When the first of its faults struck."""
        return min(fault.at for fault in self.faults)


@dataclass(frozen=True)
class Recovery:
    """A fault and the way back to training. Seconds count from the fault; None: not within the log."""

    fault: Fault
    layer: str | None
    """`in_process`, `in_job` or `node`: what changed. None while not recovered."""
    detected_s: float | None
    recovered_s: float | None
    """To the end of the first finished step of a later attempt."""
    lost_steps: int
    """Finished steps that were rolled back. Faults in one attempt share them: they are counted at the first."""
    breakdown: Mapping[str, float | None]
    """Seconds of each of PARTS; None: did not apply or left no event, its time is in the next one."""


def find_failures(
    timeline: Timeline, attempts: Sequence[Attempt], boundaries: Sequence[float], end: float
) -> list[Failure]:
    """Failures in order. boundaries: times at which a person started the run again (a stop before it is no failure).

    An attempt that ends before its first finished step, while an earlier failure is not overcome yet, is a part of that
    recovery unless a fault was injected into it: one SIGKILL may cost an in-process attempt before the launcher acts.
    """
    injected = _injected(timeline, attempts)
    evidence = _evidence(timeline)
    failures: list[Failure] = []
    overcome = True
    for index, attempt in [(-1, None), *enumerate(attempts)]:
        later = attempts[index + 1] if index + 1 < len(attempts) else None
        begun_by_person = attempt and later and any(attempt.begin < b <= later.begin for b in boundaries)
        overcome = overcome or attempt is None or bool(attempt.steps)
        faults = injected.get(index, [])
        if not faults and attempt and overcome and not begun_by_person:
            faults = _not_injected(attempt, later is not None)
        if faults:
            failures.append(_failure(index, faults, attempt, later, evidence, end))
        overcome = (overcome and not faults) or bool(begun_by_person)
    return failures


def _failure(
    index: int, faults: list[Fault], attempt: Attempt | None, later: Attempt | None, evidence: list[float], end: float
) -> Failure:
    at = min(fault.at for fault in faults)
    limit = later.begin if later else end
    own = [t for t in map(_own_evidence, attempt.points("attempt_end") if attempt else ()) if t is not None]
    seen = [t for t in (*own, *evidence) if at <= t <= limit]
    return Failure(index, tuple(faults), max(at, min(seen, default=limit)), bool(seen) or later is not None)


def _injected(timeline: Timeline, attempts: Sequence[Attempt]) -> dict[int, list[Fault]]:
    """Injected faults by the attempt that they hit. A fault logged twice counts once, from its first line."""
    found: dict[int, list[Fault]] = {}
    known: set[str] = set()
    for event in timeline.named("fault"):
        kind = event.text("kind") or UNKNOWN
        fault = Fault(event.text("id"), kind, event.whole("rank"), event.whole("step"), event.start)
        if fault.id and fault.id in known:
            continue
        known.add(fault.id)
        index = next((i for i, a in enumerate(attempts) if event in a.points("fault")), None)
        if index is None:
            index = sum(attempt.begin <= event.start for attempt in attempts) - 1
        found.setdefault(index, []).append(fault)
    return found


def _not_injected(attempt: Attempt, replaced: bool) -> list[Fault]:
    """The failure of an attempt without a fault, if it failed: it was replaced, or a rank ended by an exception."""
    ends = [e for e in attempt.points("attempt_end") if e.start <= attempt.until]
    preempted = [e for e in ends if e.text("outcome") == PREEMPTED]
    raised = [e for e in ends if e.text("outcome") == "exception"]
    if attempt.complete or not (replaced or raised or preempted):
        return []
    witness = next(iter(preempted or raised), None)
    rank = None if witness is None else witness.process.rank
    step = None if witness is None else witness.whole("step")
    if preempted:
        return [Fault("", PREEMPTED, rank, step, min(e.start for e in preempted))]
    return [Fault("", UNKNOWN, rank, step, _last_progress(attempt))]


def _last_progress(attempt: Attempt) -> float:
    if attempt.last_step_end is not None:
        return attempt.last_step_end
    own = attempt.columns.latest_end(attempt.until, without="attempt_end")
    ends = [event.start for event in attempt.points("attempt_end")]
    return min([attempt.begin if own is None else own, *ends])


def _own_evidence(event: Event) -> float | None:
    return event.start if event.text("outcome") in ("exception", PREEMPTED) else None


def _evidence(timeline: Timeline) -> list[float]:
    """When something outside the ranks noticed a failure: launcher, supervisor, or Kubernetes seeing a pod's exit.

    The exit of a pod on a killed node does not count: the local runner knows of it, but a dead node reports nothing.
    """
    killed = [(event.start, event.text("node")) for event in timeline.named("node_killed")]
    homes = [(event.start, event.text("pod"), event.text("node")) for event in timeline.named("pod_created")]
    times = []
    for event in timeline.named("launcher_event", "launcher_end", "pod_end", "pod_exit"):
        if event.name == "launcher_event":
            if event.text("event") == "failure_detected":
                times.append(event.start)
        elif event.whole("code") == 0 or (event.name == "pod_exit" and _died_with_node(event, homes, killed)):
            continue
        else:
            times.append(event.start)
    return times


def _died_with_node(event: Event, homes: list[tuple[float, str, str]], killed: list[tuple[float, str]]) -> bool:
    """Whether the node of this pod was killed between the pod's start and its exit."""
    lives = [(start, node) for start, pod, node in homes if pod == event.text("pod") and start <= event.start]
    return bool(lives) and any(node == lives[-1][1] and lives[-1][0] <= t <= event.start for t, node in killed)


def find_recoveries(
    timeline: Timeline, attempts: Sequence[Attempt], failures: Sequence[Failure]
) -> tuple[Recovery, ...]:
    """One recovery per fault, in order of time."""
    recoveries = [recovery for failure in failures for recovery in _recoveries(timeline, attempts, failure)]
    return tuple(sorted(recoveries, key=lambda recovery: recovery.fault.at))


def _recoveries(timeline: Timeline, attempts: Sequence[Attempt], failure: Failure) -> Iterator[Recovery]:
    failed = attempts[failure.attempt] if failure.attempt >= 0 else None
    healed = next((a for a in attempts[failure.attempt + 1 :] if a.steps), None)
    lost = max(0, failed.last_step - (healed.started_from or 0)) if failed and healed and failed.steps else 0
    for fault in sorted(failure.faults, key=lambda fault: fault.at):
        noticed = max(failure.noticed, fault.at)
        recovered = healed.first_finished[1] if healed else None
        yield Recovery(
            fault=fault,
            layer=changed(failed, healed) if failed and healed else None,
            detected_s=noticed - fault.at if failure.evident else None,
            recovered_s=max(0.0, recovered - fault.at) if recovered is not None else None,
            lost_steps=lost,
            breakdown=_breakdown(timeline, fault.at, noticed, failed, healed)
            if failed and healed
            else dict.fromkeys(PARTS),
        )
        lost = 0


def _breakdown(
    timeline: Timeline, at: float, noticed: float, failed: Attempt, healed: Attempt
) -> dict[str, float | None]:
    marks = {"noticed": noticed, **_marks(timeline, at, failed, healed)}
    seconds: dict[str, float | None] = dict.fromkeys(PARTS)
    reached, last = at, healed.first_finished[1]
    for part in PARTS:
        mark = marks[part]
        if mark is not None:
            # A rank may do a part before a slower one has done the part before it: never count time twice.
            seconds[part] = max(0.0, min(mark, last) - reached)
            reached = max(reached, min(mark, last))
    return seconds


def _marks(timeline: Timeline, at: float, failed: Attempt, healed: Attempt) -> dict[str, float | None]:
    """When the slowest rank had done each part but the first."""
    first_start, first_end = healed.first_finished
    restores = healed.points("restore")
    before = min([e.start for e in restores], default=first_start)
    built = [e.end for e in healed.points("build", "data_open") if e.start <= before]
    if changed(failed, healed) == IN_PROCESS:
        stopped = [e.start for e in failed.points("attempt_end") if at <= e.start]
        started = [e.start for e in healed.points("attempt_start")]
    else:
        gone = timeline.named("launcher_event")
        stopped = [e.start for e in gone if e.text("event") == "worker_terminated" and at <= e.start <= first_start]
        started = [e.start for e in healed.points("process_start")]
    return {
        "stopped": max(stopped, default=None),
        "started": max(started, default=None),
        "imported": max((e.end for e in healed.points("import")), default=None),
        "group": max((e.end for e in healed.points("process_group")), default=None),
        "model": max(built, default=None),
        "restored": max((e.end for e in restores), default=None),
        "first_step": first_end,
    }
