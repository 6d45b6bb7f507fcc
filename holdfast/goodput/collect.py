"""Pieces of event logs, in whatever order they were read -> columns of the whole run on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.goodput.clocks import StepEnds, clock_shifts
from holdfast.goodput.columns import ABSENT, NONE, Codes, Events, Floats, Integers, Spans
from holdfast.goodput.event import Process
from holdfast.goodput.events import segment_of
from holdfast.goodput.lines import Rows, Segment, process_of
from holdfast.goodput.timeline import Anomaly

_MOST_STEPS = 2**40
"""A step number beyond it is damage."""


class _Table:
    """One name's columns, each made once at its full length: rows go to where they belong, in whatever order they come.

    place: the segment of a row, by its place in the order of all segments.
    """

    def __init__(self, counts: Integers) -> None:
        """counts: rows of each place."""
        self._counts = counts
        self._first = np.cumsum(counts) - counts
        self._filled = np.zeros(len(counts), np.int64)
        self._total = int(counts.sum())
        self._t, self._dur = np.empty(self._total), np.empty(self._total)
        self._whole: dict[str, Integers] = {}
        self._real: dict[str, Floats] = {}
        self._rest: Codes | None = None

    def put(self, place: Codes, rows: Rows, first_rest: int) -> None:
        """Rows of one or more places, those of one together. Raises ValueError for more than were announced."""
        begins = np.flatnonzero(np.concatenate(([True], place[1:] != place[:-1])))
        lengths = np.diff(begins, append=len(place))
        own = place[begins]
        if len(np.unique(own)) < len(own) or (self._filled[own] + lengths > self._counts[own]).any():
            raise ValueError("it has other rows than it says")
        target = np.repeat(self._first[own] + self._filled[own] - begins, lengths) + np.arange(len(place))
        self._filled[own] += lengths
        self._t[target], self._dur[target] = rows.t, rows.dur
        for key, whole in rows.whole.items():
            if key not in self._whole:
                self._whole[key] = np.full(self._total, ABSENT)
            self._whole[key][target] = whole
        for key, real in rows.real.items():
            if key not in self._real:
                self._real[key] = np.full(self._total, np.nan)
            self._real[key][target] = real
        if rows.rest is not None:
            if self._rest is None:
                self._rest = np.full(self._total, NONE, np.int32)
            self._rest[target] = np.where(rows.rest == NONE, NONE, rows.rest + first_rest)

    def spans(self, process: Codes) -> Spans:
        """The columns; `end` holds durations. process: of each place."""
        spans = Spans(self._t, self._dur, np.repeat(process, self._counts), self._whole, self._real, self._rest)
        if (self._filled == self._counts).all():
            return spans
        # An archive that was damaged in the middle did not deliver the rest.
        within = np.arange(self._total) - np.repeat(self._first, self._counts)
        return spans.take(within < np.repeat(self._filled, self._counts))


def _order(segment: Segment, process: Process) -> tuple[str, int, int, str, int]:
    """Processes of one attempt stand together, so that its events are one slice of the columns."""
    file, number = segment_of(segment.file)
    return process.source, process.generation, process.cycle, file, number


class Collection:
    """Takes all pieces of a run's logs, then makes Events of them. Holds each number once, whatever the run's size."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        """segments: all whose rows will come, each known by its file."""
        known = [(segment, process) for segment in segments if (process := process_of(segment.file, segment.anchor))]
        known.sort(key=lambda pair: _order(*pair))
        first: dict[str, Process] = {}
        for _, process in known:
            first.setdefault(process.file, process)
        self.processes = tuple(first.values())
        number = {file: index for index, file in enumerate(first)}
        self._process = np.array([number[process.file] for _, process in known], np.int32)
        self._place = {segment.file: place for place, (segment, _) in enumerate(known)}
        self._tables = {
            name: _Table(np.array([segment.counts.get(name, 0) for segment, _ in known], np.int64))
            for name in dict.fromkeys(name for segment, _ in known for name in segment.counts)
        }
        self._rests: list[Mapping[str, Any]] = []

    def add_segment(self, segment: Segment) -> None:
        """The rows of one segment, which has none after it."""
        place = self._place[segment.file]
        for name, rows in segment.rows.items():
            self._tables[name].put(np.full(len(rows.t), place, np.int32), rows, len(self._rests))
        self._rests += segment.rests
        segment.rows, segment.rests = {}, []

    def add_rows(
        self, name: str, files: Sequence[str], segment: Codes, rows: Rows, rests: Sequence[Mapping[str, Any]]
    ) -> None:
        """Rows of several segments: segment indexes files. Raises ValueError for rows that were not announced."""
        if name not in self._tables or not all(file in self._place for file in files):
            raise ValueError("it has other rows than it says")
        places = np.array([self._place[file] for file in files], np.int32)
        self._tables[name].put(places[segment], rows, len(self._rests))
        if rows.rest is not None:
            self._rests += rests

    def events(self) -> tuple[Events, float, list[Anomaly]]:
        """(events, wall-clock time of second 0, what is odd about the clocks). The collection is empty after it."""
        spans = {name: self._tables.pop(name).spans(self._process) for name in list(self._tables)}
        events = Events(spans, self.processes, self._rests)
        if not self.processes:
            return events, 0.0, []
        shifts, anomalies = clock_shifts(self.processes, _step_ends(events))
        shift = np.array([shifts[process.boot] for process in self.processes])
        found = list(events.by_name.values())
        for each in found:
            np.add(each.start, shift[each.process], out=each.start)
        origin = min((float(each.start.min()) for each in found), default=self.processes[0].mono + float(shift[0]))
        for each in found:
            np.subtract(each.start, origin, out=each.start)
            np.add(each.end, each.start, out=each.end)  # held durations until now
        reference = next(process for process in self.processes if shifts[process.boot] == 0.0)
        return events, reference.wall - reference.mono + origin, anomalies


def _step_ends(events: Events) -> list[StepEnds]:
    """Finished steps of each boot; nothing if there is only one, whose clock needs no comparison. `end` holds
    durations."""
    boots: dict[str, list[int]] = {}
    for index, process in enumerate(events.processes):
        boots.setdefault(process.boot, []).append(index)
    if len(boots) < 2:
        return []
    cycles = sorted({(process.generation, process.cycle) for process in events.processes})
    cycle_of = {pair: number for number, pair in enumerate(cycles)}
    steps = events.spans("step")
    found = []
    for boot, indexes in boots.items():
        own = [index for index in indexes if events.processes[index].trains]
        parts = [_keyed(events, steps.take(steps.of_process(index)), cycle_of, index) for index in own]
        keys, ends = [part[0] for part in parts], [part[1] for part in parts]
        if sum(map(len, keys)):
            found.append(StepEnds.of(boot, np.concatenate(keys), np.concatenate(ends)))
    return found


def _keyed(
    events: Events, steps: Spans, cycle_of: Mapping[tuple[int, int], int], process: int
) -> tuple[Integers, Floats]:
    """(key, end) of each finished step of one process."""
    own, number = events.processes[process], steps.integers("step")
    usable = events.finished(steps) & (number >= 0) & (number < _MOST_STEPS)
    keys = cycle_of[own.generation, own.cycle] * _MOST_STEPS + number[usable]
    return keys, steps.start[usable] + steps.end[usable]
