"""Events as columns. A run of 1000 ranks has some ten million steps: as Python objects they would not fit in memory.

`Events` is a sequence of `Event` objects for whoever wants to read them, made only when asked for; the ledger works on
the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.goodput.event import Event, Process

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Codes = NDArray[np.int32]
Flags = NDArray[np.bool_]

ABSENT = int(np.iinfo(np.int64).min)
"""Stands for an integer field that an event does not have. An absent real number is NaN."""
NONE = -1
"""Code of an event without irregular fields."""
ERROR = "error"
"""A span with this field did not finish what it began."""
TIER, LOCAL = "tier", "local"
"""Field of events of the local tier, and its value; those of the shared storage have none."""


@dataclass(frozen=True, slots=True)
class Spans:
    """All events of one name, as columns of one length: those of one process together, in the order written.

    start, end: job seconds. process: index into Events.processes. whole, real: the fields that hold integers and finite
    real numbers, by key. rest: index into Events.rests, where the other fields are.
    """

    start: Floats = field(default_factory=lambda: np.empty(0))
    end: Floats = field(default_factory=lambda: np.empty(0))
    process: Codes = field(default_factory=lambda: np.empty(0, np.int32))
    whole: Mapping[str, Integers] = field(default_factory=dict)
    real: Mapping[str, Floats] = field(default_factory=dict)
    rest: Codes | None = None

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[Any] | slice) -> Spans:
        """These rows: indices, flags or a slice. A slice copies nothing."""
        return Spans(
            self.start[rows],
            self.end[rows],
            self.process[rows],
            {key: values[rows] for key, values in self.whole.items()},
            {key: values[rows] for key, values in self.real.items()},
            None if self.rest is None else self.rest[rows],
        )

    def integers(self, key: str) -> Integers:
        """The integer field `key` of each row, ABSENT where it has none."""
        values = self.whole.get(key)
        return np.full(len(self), ABSENT) if values is None else values

    def numbers(self, key: str) -> Floats:
        """The field `key` of each row as a real number, also where it was logged as an integer; NaN where it has
        none."""
        whole = self.integers(key)
        real = self.real.get(key, np.full(len(self), nan))
        return np.where(whole == ABSENT, real, whole.astype(np.float64))

    def of_process(self, process: int) -> slice:
        """The rows of one process."""
        # Of the same type: else numpy would convert the whole column first.
        first, last = np.searchsorted(self.process, np.array((process, process + 1), np.int32)).tolist()
        return slice(first, last)


class Events(Sequence[Event]):
    """Events in order of start, kept as columns. `processes` and `rests` may hold more than these events need."""

    def __init__(
        self, spans: Mapping[str, Spans], processes: Sequence[Process], rests: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.by_name = {name: found for name, found in spans.items() if len(found)}
        self.processes = tuple(processes)
        self.rests = rests

    @classmethod
    def of(cls, events: Iterable[Event]) -> Events:
        """Columns of Event objects, of a simulation for instance."""
        by_name: dict[str, list[Event]] = {}
        processes: dict[Process, int] = {}
        for event in events:
            by_name.setdefault(event.name, []).append(event)
            processes.setdefault(event.process, len(processes))
        rests: list[Mapping[str, Any]] = []
        spans = {name: _columns(found, processes, rests) for name, found in by_name.items()}
        return cls(spans, tuple(processes), rests)

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._all[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._all)

    @cached_property
    def _all(self) -> tuple[Event, ...]:
        return tuple(self.named(*self.by_name))

    def spans(self, name: str) -> Spans:
        """The events of one name."""
        return self.by_name.get(name, _NOTHING)

    def named(self, *names: str) -> list[Event]:
        """Events with one of these names as objects, in order of start, then of end."""
        wanted = [(name, self.by_name[name]) for name in dict.fromkeys(names) if name in self.by_name]
        found = [event for name, spans in wanted for event in self._objects(name, spans)]
        found.sort(key=lambda event: (event.start, event.end))
        return found

    def finished(self, spans: Spans) -> Flags:
        """Which of these rows have no field `error`."""
        if spans.rest is None:
            return np.ones(len(spans), bool)
        return np.asarray(self._clean[spans.rest])

    @cached_property
    def _clean(self) -> Flags:
        # The last entry is for NONE, which is index -1.
        return np.array([*(ERROR not in rest for rest in self.rests), True])

    def local(self, spans: Spans) -> Flags:
        """Which of these rows are of the local tier."""
        if spans.rest is None:
            return np.zeros(len(spans), bool)
        # Only what these rows need: the rests are those of the whole run.
        codes, index = np.unique(spans.rest, return_inverse=True)
        of_tier = [code != NONE and str(self.rests[code].get(TIER)) == LOCAL for code in codes.tolist()]
        return np.array(of_tier, bool)[index]

    def start(self) -> float:
        """The earliest start. Raises ValueError without events."""
        return min(float(spans.start.min()) for spans in self.by_name.values())

    def end(self) -> float:
        """The latest end. Raises ValueError without events."""
        return max(float(spans.end.max()) for spans in self.by_name.values())

    def latest_end(self, limit: float, *, without: str = "") -> float | None:
        """The latest end up to a limit, of events of any other name than `without`."""
        ends = [spans.end[spans.end <= limit] for name, spans in self.by_name.items() if name != without]
        return max((float(found.max()) for found in ends if len(found)), default=None)

    def last_signs(self) -> dict[int, float]:
        """When each process was last heard of: the latest end, by index into `processes`."""
        last = np.full(len(self.processes), -np.inf)
        for spans in self.by_name.values():
            np.maximum.at(last, spans.process, spans.end)
        return {index: float(last[index]) for index in np.flatnonzero(last > -np.inf).tolist()}

    def _objects(self, name: str, spans: Spans) -> Iterator[Event]:
        whole = [(key, values.tolist()) for key, values in spans.whole.items()]
        real = [(key, values.tolist()) for key, values in spans.real.items()]
        rest = [NONE] * len(spans) if spans.rest is None else spans.rest.tolist()
        times = zip(spans.start.tolist(), spans.end.tolist(), spans.process.tolist(), strict=True)
        for row, (start, end, process) in enumerate(times):
            fields = {} if rest[row] == NONE else dict(self.rests[rest[row]])
            fields.update((key, values[row]) for key, values in whole if values[row] != ABSENT)
            fields.update((key, values[row]) for key, values in real if values[row] == values[row])
            yield Event(start, end, name, fields, self.processes[process])


_NOTHING = Spans()


def sort_fields(
    fields: Sequence[Mapping[str, Any]], rests: list[Mapping[str, Any]]
) -> tuple[dict[str, Integers], dict[str, Floats], Codes | None]:
    """The fields of events of one name as (whole, real, rest) of Spans. Irregular fields are appended to rests."""
    whole: dict[str, list[int]] = {}
    real: dict[str, list[float]] = {}
    rest = [NONE] * len(fields)
    for row, own in enumerate(fields):
        irregular = {}
        for key, value in own.items():
            if key == ERROR:
                irregular[key] = value
            elif type(value) is int and ABSENT < value < -ABSENT:
                if key not in whole:
                    whole[key] = [ABSENT] * len(fields)
                whole[key][row] = value
            elif type(value) is float and isfinite(value):
                if key not in real:
                    real[key] = [nan] * len(fields)
                real[key][row] = value
            else:
                irregular[key] = value
        if irregular:
            rest[row] = len(rests)
            rests.append(irregular)
    return (
        {key: np.array(values, np.int64) for key, values in whole.items()},
        {key: np.array(values) for key, values in real.items()},
        np.array(rest, np.int32) if any(code != NONE for code in rest) else None,
    )


def _columns(events: list[Event], processes: Mapping[Process, int], rests: list[Mapping[str, Any]]) -> Spans:
    events = sorted(events, key=lambda event: processes[event.process])
    whole, real, rest = sort_fields([event.fields for event in events], rests)
    return Spans(
        np.array([event.start for event in events]),
        np.array([event.end for event in events]),
        np.array([processes[event.process] for event in events], np.int32),
        whole,
        real,
        rest,
    )
