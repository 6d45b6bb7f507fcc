"""Attempts: which rank processes worked together, when, on which steps, and which of those steps survived."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from holdfast.goodput.timeline import Anomaly, Event, Timeline

Key = tuple[int, int, int]
"""(generation, cycle, restart)."""

IN_PROCESS, IN_JOB, NODE = "in_process", "in_job", "node"


@dataclass(frozen=True)
class Attempt:
    """One attempt to train: the events of its ranks, in order of start.

    The job belongs to the newest attempt that has begun. `until` is when a newer one begins, or the end of the run;
    what a stale rank of this attempt still does after it is not counted.
    """

    key: Key
    events: tuple[Event, ...]
    begin: float
    until: float
    outlived: frozenset[str] = frozenset()
    """Pods whose supervisor was alive after their rank's last sign: not lost, even if a spare got their seat."""

    def __str__(self) -> str:
        return "g{}-c{}-r{}".format(*self.key)

    @cached_property
    def pods(self) -> dict[int, str]:
        """Pod of each rank that left a log."""
        return {e.process.rank: e.process.pod for e in self.events if e.process.rank is not None}

    @cached_property
    def steps(self) -> dict[int, tuple[float, float]]:
        """Finished steps: from the first rank's start to the last rank's end."""
        found: dict[int, tuple[float, float]] = {}
        for event in self.events:
            step = event.finished_step
            if step is not None:
                start, end = found.get(step, (event.start, event.end))
                found[step] = (min(start, event.start), max(end, event.end))
        return found

    @property
    def first_finished(self) -> tuple[float, float]:
        """Start and end of the step that was finished first. Raises ValueError without a finished step."""
        return min(self.steps.values(), key=lambda span: span[1])

    @cached_property
    def first_step_start(self) -> float | None:
        """Start of its first step, finished or not. None if it never came that far."""
        return min((e.start for e in self.events if e.name == "step"), default=None)

    @cached_property
    def last_step_end(self) -> float | None:
        """End of the last step that was finished while the job was this attempt's. None if there is none."""
        ends = [end for start, end in self.steps.values() if start < self.until]
        return min(max(ends), self.until) if ends else None

    @cached_property
    def last_step(self) -> int:
        """Highest step finished while the job was this attempt's; 0 if none."""
        return max((step for step, (_, end) in self.steps.items() if end <= self.until), default=0)

    @cached_property
    def started_from(self) -> int | None:
        """The step whose state it began with: the restored one, 0 if fresh, None if it died before that was known."""
        restored = [e.whole("step") for e in self.events if e.name == "restore" and "error" not in e.fields]
        known = [step for step in restored if step is not None]
        begun = [step for e in self.events if e.name == "step" and (step := e.whole("step")) is not None]
        return max(known) if known else min(begun) - 1 if begun else None

    @property
    def complete(self) -> bool:
        """Whether it trained to the last step."""
        return any(e.name == "attempt_end" and e.text("outcome") == "complete" for e in self.events)

    def points(self, name: str) -> list[Event]:
        """Its events of this name."""
        return [event for event in self.events if event.name == name]


def find_attempts(timeline: Timeline, end: float) -> tuple[tuple[Attempt, ...], tuple[Anomaly, ...]]:
    """All attempts, oldest first; `end` is the end of the run. One that a newer one precedes gets no time at all."""
    groups: dict[Key, list[Event]] = defaultdict(list)
    by_process: dict[str, list[Event]] = defaultdict(list)
    for event in timeline.events:
        if event.process.source == "rank" and event.process.rank is not None:
            by_process[event.process.file].append(event)
    for events in by_process.values():
        _assign(events, groups)
    attempts = [Attempt(key, tuple(sorted(groups[key], key=lambda e: e.start)), 0.0, end) for key in sorted(groups)]
    attempts = [replace(attempt, begin=attempt.events[0].start) for attempt in attempts]
    attempts = [replace(attempt, outlived=_outlived(attempt, timeline)) for attempt in attempts]
    until, result = end, []
    for attempt in reversed(attempts):
        result.append(replace(attempt, until=min(until, end)))
        until = min(until, attempt.begin)
    ordered = tuple(reversed(result))
    return ordered, (*_order_anomalies(ordered), *_missing_ranks(ordered))


def _outlived(attempt: Attempt, timeline: Timeline) -> frozenset[str]:
    last_sign: dict[str, float] = {}
    for event in attempt.events:
        pod = event.process.pod
        last_sign[pod] = max(last_sign.get(pod, event.end), event.end)
    watched = [e for e in timeline.events if e.process.source == "supervisor"]
    return frozenset(e.process.pod for e in watched if e.end > last_sign.get(e.process.pod, e.end))


def _assign(events: Sequence[Event], groups: dict[Key, list[Event]]) -> None:
    """Add one rank process's events to the attempts they belong to: its restarts begin with attempt_start."""
    starts = [(e.start, e.whole("restart") or 0) for e in events if e.name == "attempt_start"]
    times = [t for t, _ in starts]
    process = events[0].process
    for event in events:
        index = bisect_right(times, event.start) - 1
        restart = starts[max(index, 0)][1] if starts else 0
        groups[process.generation, process.cycle, restart].append(event)


def _order_anomalies(attempts: Sequence[Attempt]) -> list[Anomaly]:
    found = []
    for older, newer in pairwise(attempts):
        if newer.begin < older.begin:
            text = (
                f"begins {older.begin - newer.begin:.1f} s before the older attempt {older}: the clocks of their "
                "machines disagree; the older one's time is not counted"
            )
            found.append(Anomaly("attempt_order", str(newer), text))
    return found


def _missing_ranks(attempts: Iterable[Attempt]) -> list[Anomaly]:
    """Attempts that trained without a log of every rank. One that never came to a step may have lacked the rank."""
    found = []
    for attempt in attempts:
        if not attempt.steps:
            continue
        world = max(event.process.world_size for event in attempt.events)
        missing = sorted(set(range(world)) - attempt.pods.keys())
        if missing:
            names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            text = f"no log of {len(missing)} of {world} ranks ({names}); their time is taken to be like the others'"
            found.append(Anomaly("missing_rank", str(attempt), text))
    return found


def reigning(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The attempts that had the job for a while, in order of time."""
    return tuple(attempt for attempt in attempts if attempt.begin < attempt.until)


def surviving_steps(attempts: Sequence[Attempt]) -> dict[int, Key]:
    """For each step that is part of the final state: the attempt whose execution counts. All other executions are lost.

    The last execution counts, unless the newest attempt started from an older step: then it was rolled back, whether or
    not it has been executed again. Steps after the last commit of a run that stopped count: nothing rolled them back.
    """
    last: dict[int, Key] = {}
    for attempt in attempts:
        for step in attempt.steps:
            last[step] = attempt.key
    newest = next((attempt for attempt in reversed(attempts) if attempt.started_from is not None), None)
    if newest is None:
        return last
    start = newest.started_from
    return {step: key for step, key in last.items() if key >= newest.key or (start is not None and step <= start)}


def changed(older: Attempt, newer: Attempt) -> str:
    """Which layer made `newer` of `older`: `in_process`, `in_job`, or `node` (a pod was lost, or a new generation).

    ft_launcher may give the seat of a healthy node that is slow to stop to a spare; that is its business, not layer
    3's.
    """
    if older.key[0] != newer.key[0]:
        return NODE
    if older.key[1] == newer.key[1]:
        return IN_PROCESS
    # Ranks may change seats among the same pods. A rank without an old log proves nothing.
    known = {pod for rank, pod in newer.pods.items() if rank in older.pods}
    moved = known - set(older.pods.values())
    gone = set(older.pods.values()) - set(newer.pods.values())
    return NODE if moved and not gone <= older.outlived else IN_JOB
