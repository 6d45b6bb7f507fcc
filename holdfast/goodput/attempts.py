"""Attempts: which rank processes worked together, when, on which steps, and which of those steps survived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from holdfast.goodput.columns import ABSENT, Events, Flags, Floats, Integers, Spans
from holdfast.goodput.dividing import Key as Key
from holdfast.goodput.dividing import divide
from holdfast.goodput.timeline import Anomaly, Event, Process, Timeline

IN_PROCESS, IN_JOB, NODE = "in_process", "in_job", "node"


@dataclass(frozen=True)
class Extents:
    """From the first rank's start to the last rank's end, for each step in a set of spans. Steps ascend."""

    steps: Integers
    start: Floats
    end: Floats

    @classmethod
    def of(cls, *spans: Spans) -> Extents:
        """Of spans that have a field `step`; those without one are left out."""
        number = np.concatenate([found.integers("step") for found in spans])
        known = number != ABSENT
        steps, index = np.unique(number[known], return_inverse=True)
        start, end = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
        np.minimum.at(start, index, np.concatenate([found.start for found in spans])[known])
        np.maximum.at(end, index, np.concatenate([found.end for found in spans])[known])
        return cls(steps, start, end)


@dataclass(frozen=True)
class Attempt:
    """One attempt to train: the events of its ranks, in order of start.

    The job belongs to the newest attempt that has begun. `until` is when a newer one begins, or the end of the run;
    what a stale rank of this attempt still does after it is not counted.
    """

    key: Key
    events: Sequence[Event]
    begin: float
    until: float
    outlived: frozenset[str] = frozenset()
    """Pods whose supervisor was alive after their rank's last sign: not lost, even if a spare got their seat."""

    def __str__(self) -> str:
        return "g{}-c{}-r{}".format(*self.key)

    @cached_property
    def columns(self) -> Events:
        """The events as columns."""
        return self.events if isinstance(self.events, Events) else Events.of(self.events)

    @cached_property
    def processes(self) -> tuple[Process, ...]:
        """The rank processes of this attempt that left a log."""
        present = sorted({index for spans in self.columns.by_name.values() for index in set(np.unique(spans.process))})
        return tuple(self.columns.processes[index] for index in present)

    @cached_property
    def pods(self) -> dict[int, str]:
        """Pod of each rank that left a log."""
        return {process.rank: process.pod for process in self.processes if process.rank is not None}

    @cached_property
    def world_size(self) -> int:
        """Ranks that this attempt trained with, whether or not each left a log. An elastic job changes its size."""
        return max((process.world_size for process in self.processes), default=0) or len(self.pods)

    @cached_property
    def finished(self) -> Spans:
        """The steps that the attempt executed to their end: one row per rank that logged it, and step.

        A step is the job's, or nobody's: where it ended with an error on one rank, a peer whose collective was aborted
        may log it like any other, with numbers that mean nothing. A rank without a row for it proves nothing.
        """
        steps = self.columns.spans("step")
        number, clean = steps.integers("step"), self.columns.finished(steps)
        whole = clean & (number != ABSENT)
        if not clean.all():
            whole &= ~np.isin(number, _broken(steps, clean))
        return steps if whole.all() else steps.take(whole)

    @cached_property
    def extents(self) -> Extents:
        """Of the finished steps."""
        return Extents.of(self.finished)

    @cached_property
    def steps(self) -> dict[int, tuple[float, float]]:
        """Finished steps: from the first rank's start to the last rank's end."""
        found = self.extents
        return dict(zip(found.steps.tolist(), zip(found.start.tolist(), found.end.tolist(), strict=True), strict=True))

    @property
    def first_finished(self) -> tuple[float, float]:
        """Start and end of the step that was finished first. Raises ValueError without a finished step."""
        return min(self.steps.values(), key=lambda span: span[1])

    @cached_property
    def first_step_start(self) -> float | None:
        """Start of its first step, finished or not. None if it never came that far."""
        steps = self.columns.spans("step")
        return float(steps.start.min()) if len(steps) else None

    @cached_property
    def last_step_end(self) -> float | None:
        """End of the last step that was finished while the job was this attempt's. None if there is none."""
        ends = self.extents.end[self.extents.start < self.until]
        return min(float(ends.max()), self.until) if len(ends) else None

    @cached_property
    def last_step(self) -> int:
        """Highest step finished while the job was this attempt's; 0 if none."""
        return max(self.extents.steps[self.extents.end <= self.until].tolist(), default=0)

    @cached_property
    def started_from(self) -> int | None:
        """The step whose state it began with: the restored one, 0 if fresh, None if it died before that was known."""
        restored = [e.whole("step") for e in self.points("restore") if "error" not in e.fields]
        known = [step for step in restored if step is not None]
        if known:
            return max(known)
        begun = self.columns.spans("step").integers("step")
        begun = begun[begun != ABSENT]
        return int(begun.min()) - 1 if len(begun) else None

    @property
    def complete(self) -> bool:
        """Whether it trained to the last step."""
        return any(e.text("outcome") == "complete" for e in self.points("attempt_end"))

    def points(self, *names: str) -> list[Event]:
        """Its events of these names."""
        return self.columns.named(*names)


def find_attempts(timeline: Timeline, end: float) -> tuple[tuple[Attempt, ...], tuple[Anomaly, ...]]:
    """All attempts, oldest first; `end` is the end of the run. One that a newer one precedes gets no time at all."""
    attempts = [Attempt(key, events, events.start(), end) for key, events in sorted(divide(timeline).items())]
    watched = _last_signs(timeline.columns, "supervisor")
    attempts = [replace(attempt, outlived=_outlived(attempt, watched)) for attempt in attempts]
    until, result = end, []
    for attempt in reversed(attempts):
        result.append(replace(attempt, until=min(until, end)))
        until = min(until, attempt.begin)
    ordered = tuple(reversed(result))
    return ordered, (*_order_anomalies(ordered), *_missing_ranks(ordered))


def _outlived(attempt: Attempt, watched: Mapping[str, float]) -> frozenset[str]:
    signs = _last_signs(attempt.columns, "rank")
    return frozenset(pod for pod, seen in watched.items() if seen > signs.get(pod, seen))


def _last_signs(events: Events, source: str) -> dict[str, float]:
    """When each pod's processes of this kind were last heard of."""
    last: dict[str, float] = {}
    for index, end in events.last_signs().items():
        process = events.processes[index]
        if process.source == source:
            last[process.pod] = max(last.get(process.pod, end), end)
    return last


def _broken(steps: Spans, clean: Flags) -> list[int]:
    """The steps that ended with an error on a rank. One that the same process executed again counts by the last time:
    a damaged line may have hidden a restart."""
    number = steps.integers("step")
    found = set()
    for row in np.flatnonzero(~clean).tolist():
        later = slice(row + 1, steps.of_process(int(steps.process[row])).stop)
        if not (clean[later] & (number[later] == number[row])).any():
            found.add(int(number[row]))
    return sorted(found)


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
        if not len(attempt.finished):
            continue
        world = attempt.world_size
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
