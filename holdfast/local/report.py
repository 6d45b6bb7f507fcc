"""What the local runner tells its observers, as plain data. `at` is monotonic seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.local.rewrite import Rewrite

Outcome = Literal["succeeded", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Happening:
    """Base of everything that is told."""

    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class RunStarted(Happening):
    """The JobSet was created. ports: this machine's port for each (host, container port)."""

    jobset: str
    out: Path
    ports: dict[tuple[str, int], int]


@dataclass(frozen=True)
class PodPending(Happening):
    """A pod was created and no node of its pool is free."""

    pod: str
    job: str
    pool: str


@dataclass(frozen=True)
class PodStarted(Happening):
    """A pod's container was started on a node."""

    pod: str
    job: str
    node: str
    address: str
    attempt: int
    rewrites: tuple[Rewrite, ...]


@dataclass(frozen=True)
class PodReady(Happening):
    """The readiness probe of a pod changed its mind."""

    pod: str
    ready: bool


@dataclass(frozen=True)
class PodEnded(Happening):
    """The last process of a pod has gone. tail: its last lines, if nobody asked it to end and it did not succeed."""

    pod: str
    job: str
    node: str
    code: int
    reason: str
    expected: bool
    log: Path
    tail: tuple[str, ...]


@dataclass(frozen=True)
class NodeLost(Happening):
    """A node vanished with its pod."""

    node: str
    pod: str | None


@dataclass(frozen=True)
class NodeAdded(Happening):
    """A node joined."""

    node: str
    pool: str


@dataclass(frozen=True)
class PodEvicted(Happening):
    """A pod was asked to make room."""

    pod: str
    grace_s: float


@dataclass(frozen=True)
class JobFailed(Happening):
    """A Job will make no more pods."""

    job: str
    reason: str
    code: int | None


@dataclass(frozen=True)
class JobSetRestarted(Happening):
    """All Jobs are made anew."""

    attempt: int
    reason: str


@dataclass(frozen=True)
class RunEnded(Happening):
    """Every pod has gone. code: 0; that of the pod which failed the JobSet; 128 + n after a signal to us; else 1."""

    outcome: Outcome
    reason: str
    code: int
    restarts: int


Observer = Callable[[Happening], None]


@dataclass(frozen=True)
class PodState:
    """One line of the pod list. phase: Pending, Running, Terminating. pid: the container's main process."""

    name: str
    host: str
    job: str
    replicated_job: str
    index: int
    attempt: int
    phase: Literal["Pending", "Running", "Terminating"]
    ready: bool
    node: str | None
    address: str | None
    pid: int | None


def last_lines(log: Path, count: int = 15) -> tuple[str, ...]:
    """The end of a log file; empty if it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 200 * count))
            return tuple(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ()
