"""One event of a run, and the process that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Process:
    """One process that wrote a log: the identity in its anchor. Absent numbers are 0, absent names empty."""

    file: str
    """Name of its first segment."""
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

    @property
    def trains(self) -> bool:
        """Whether it is a rank, whose steps are the job's."""
        return self.source == "rank" and self.rank is not None


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
