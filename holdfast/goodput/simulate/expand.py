"""A simulated run as the event log of one rank: what the ledger and the report read. For short runs: one span per step.

The job is one rank here, as a job's ledger is that of its ranks together. What the simulation knows and a log cannot
say is left out: an elastic job's slower steps are productive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config.failure_rates import FAULT_KINDS
from holdfast.goodput.columns import LOCAL, TIER
from holdfast.goodput.simulate.result import TRAIN, JobSpan, Simulation
from holdfast.goodput.simulate.settings import Durations
from holdfast.goodput.timeline import Event, Process, Timeline

_POD = "simulated-0"
_BOOT = "simulated"
MOST_STEPS = 5_000_000
"""More steps than that do not fit into memory as events (about 1 kB each)."""


def timeline_of(run: Simulation, durations: Durations) -> Timeline:
    """The events that such a run would have logged. durations: those it was simulated with.

    Raises ValueError for a run of more than MOST_STEPS executed steps: use its buckets.
    """
    steps = sum(span.steps for span in run.spans)
    if steps > MOST_STEPS:
        raise ValueError(f"the run executed {steps:,} steps; as events they would not fit into memory")
    log = _Log()
    log.runner(0.0, "run_start")
    for index, span in enumerate(run.spans):
        _span(log, span, durations, first=index == 0)
    _faults(log, run)
    if run.complete:
        trained = [s.end for s in run.spans if s.what in (TRAIN, "checkpoint_wait")]
        log.rank(run.spans[-1].attempt, trained[-1], trained[-1], "attempt_end", outcome="complete")
        log.runner(run.wall_s, "run_end", code=0)
    return log.timeline()


class _Log:
    """Events by the process that writes them."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ranks: dict[tuple[int, int], Process] = {}
        self._attempts: set[tuple[int, int, int]] = set()
        self._runner = Process("runner", "runner", _BOOT, 0.0, 0.0)
        self._supervisor = Process("supervisor", "supervisor", _BOOT, 0.0, 0.0, pod=_POD, role="worker")

    def runner(self, at: float, name: str, **fields: Any) -> None:
        self._events.append(Event(at, at, name, fields, self._runner))

    def supervisor(self, at: float, name: str, **fields: Any) -> None:
        self._events.append(Event(at, at, name, fields, self._supervisor))

    def rank(self, attempt: tuple[int, int, int], start: float, end: float, name: str, **fields: Any) -> None:
        """An event of the rank in this attempt; its first one starts its process and the attempt."""
        generation, cycle, restart = attempt
        if (generation, cycle) not in self._ranks:
            file = f"rank-{generation}-{cycle}"
            self._ranks[generation, cycle] = Process(
                file, "rank", _BOOT, 0.0, 0.0, 0, 1, generation, cycle, _POD, "node", ""
            )
            self._add(generation, cycle, start, start, "process_start", {})
        if attempt not in self._attempts:
            self._attempts.add(attempt)
            self._add(generation, cycle, start, start, "attempt_start", {"restart": restart})
        if name:
            self._add(generation, cycle, start, end, name, fields)

    def timeline(self) -> Timeline:
        events = sorted(self._events, key=lambda event: (event.start, event.end))
        return Timeline(tuple(events), (self._runner, self._supervisor, *self._ranks.values()))

    def _add(self, generation: int, cycle: int, start: float, end: float, name: str, fields: Mapping[str, Any]) -> None:
        self._events.append(Event(start, end, name, fields, self._ranks[generation, cycle]))


def _span(log: _Log, span: JobSpan, durations: Durations, *, first: bool) -> None:
    if span.what == "queue":
        if not first:
            log.runner(span.start, "run_start")
        log.supervisor(span.end, "pod_start")
    elif span.what == TRAIN:
        for start, end, name, fields in _steps(span, durations):
            log.rank(span.attempt, start, end, name, **fields)
    elif span.what == "restore":
        log.rank(span.attempt, span.start, span.end, "restore", step=span.first)
    elif span.what == "checkpoint_wait":
        log.rank(span.attempt, span.start, span.end, "checkpoint_wait")
    elif span.what not in ("detection", "other"):
        log.rank(span.attempt, span.start, span.start, "")


def _steps(span: JobSpan, durations: Durations) -> Iterator[tuple[float, float, str, dict[str, Any]]]:
    """(start, end, name, fields) of each finished step of a stretch and of what it waited for."""
    if span.pace is None:
        raise ValueError("a span of training has a pace")
    saves: dict[int, list[int]] = {}
    for tier, step, _ in span.pace.saves_between(span.first, span.steps):
        saves.setdefault(step, []).append(tier)
    start = span.start
    for count in range(1, span.steps + 1):
        step = span.first + count
        end = span.start + span.pace.time_of(span.first, count)
        yield start, end, "step", {"step": step}
        at = start
        for tier in saves.get(step - 1, []):
            save, local = durations.tiers[tier].save, durations.tiers[tier].name == LOCAL
            fields = {"step": step - 1, **({TIER: LOCAL} if local else {})}
            if save.blocked_s:
                yield at, at + save.blocked_s, "stage", fields
                at += save.blocked_s
            if save.background_s:
                yield at, at + save.background_s, "write", fields
                committed = at + save.background_s
                if committed <= span.end:
                    yield committed, committed, "local_commit" if local else "commit", {"step": step - 1}
        if durations.data_stall_s:
            yield at, at + durations.data_stall_s, "data", {"step": step}
        start = end


def _faults(log: _Log, run: Simulation) -> None:
    """Each fault in the attempt that it struck, and when it was noticed."""
    for index, one in enumerate(run.interruptions):
        struck = next((s for s in reversed(run.spans) if s.start < one.at_s <= s.end), run.spans[0])
        if FAULT_KINDS[one.kind].announced:
            saved = [s.end for s in run.spans if s.start == one.at_s and s.what == "checkpoint_wait"]
            at = max([one.at_s, *saved])
            log.rank(struck.attempt, at, at, "attempt_end", outcome="preempted")
            continue
        step = struck.first + struck.steps + 1 if struck.what == TRAIN else 0
        fields = {"id": f"{one.kind}-{index}", "kind": one.kind, "rank": 0, "step": step}
        log.rank(struck.attempt, one.at_s, one.at_s, "fault", **fields)
        if one.detected_s is not None:
            log.supervisor(one.at_s + one.detected_s, "launcher_event", event="failure_detected")
