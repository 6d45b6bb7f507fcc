"""What a run's processes wrote, on one clock: the data that the ledger works on. A simulation can make one too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.goodput.columns import Events
from holdfast.goodput.event import Event, Process
from holdfast.goodput.job import Job

__all__ = ["Anomaly", "Event", "Process", "Timeline"]


@dataclass(frozen=True)
class Anomaly:
    """Something in the logs that the reader of a report should know. `where` is a file, a machine or an attempt."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Timeline:
    """All events in order of start. origin is the wall-clock time of second 0."""

    events: Sequence[Event] = ()
    """`Events` (columns) where a log was read; anything that holds Event objects will do."""
    processes: tuple[Process, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    origin: float = 0.0
    job: Job | None = None
    """What the run was configured to be. None where nobody knows."""

    @cached_property
    def columns(self) -> Events:
        """The events as columns."""
        return self.events if isinstance(self.events, Events) else Events.of(self.events)

    def named(self, *wanted: str, source: str | None = None) -> list[Event]:
        """Events with one of these names, in order of start."""
        return [e for e in self.columns.named(*wanted) if source is None or e.process.source == source]
