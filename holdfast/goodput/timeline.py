"""What a run's processes wrote, on one clock: the data that the ledger works on. A simulation can make one too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Anomaly:
    """Something in the logs that the reader of a report should know. `where` is a file, a machine or an attempt."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Process:
    """One process that wrote a log: the identity in its anchor. Absent numbers are 0, absent names empty."""

    file: str
    source: str
    boot: str
    wall: float
    mono: float
    rank: int | None = None
    world_size: int = 0
    generation: int = 0
    cycle: int = 0
    pod: str = ""
    node: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A point (end == start) or a span, in seconds of job time; 0 is the earliest event of the run."""

    start: float
    end: float
    name: str
    fields: Mapping[str, Any]
    process: Process

    def whole(self, key: str) -> int | None:
        """The integer field `key`, or None if it is absent or something else."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str:
        """The field `key` as text, empty if absent."""
        value = self.fields.get(key)
        return "" if value is None else str(value)

    @property
    def finished_step(self) -> int | None:
        """The number of the step that this span executed to its end, else None."""
        return self.whole("step") if self.name == "step" and "error" not in self.fields else None


@dataclass(frozen=True)
class Timeline:
    """All events in order of start. origin is the wall-clock time of second 0."""

    events: tuple[Event, ...] = ()
    processes: tuple[Process, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    origin: float = 0.0

    def named(self, *wanted: str, source: str | None = None) -> list[Event]:
        """Events with one of these names, in order of start."""
        return [e for e in self.events if e.name in wanted and (source is None or e.process.source == source)]
