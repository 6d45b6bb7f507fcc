"""Writes the event logs of an imagined run: real files by the real EventLog, on clocks that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.goodput import events
from holdfast.goodput.events import EventLog
from holdfast.goodput.ledger import BUCKETS, Ledger, account
from holdfast.goodput.reader import read_run


@dataclass(frozen=True)
class Machine:
    """A boot with its own monotonic clock (true time + mono) and wall clock (true time + wall)."""

    boot: str = "boot-a"
    mono: float = 5000.0
    wall: float = 1.7e9


class _Clock:
    """Stands in for the time module inside EventLog."""

    counter = 0

    def __init__(self, machine: Machine, now: float) -> None:
        self._machine, self._now = machine, now

    def monotonic(self) -> float:
        return self._now + self._machine.mono

    def time(self) -> float:
        return self._now + self._machine.wall

    def monotonic_ns(self) -> int:
        _Clock.counter += 1  # makes file names unique and gives them an order
        return _Clock.counter


@contextmanager
def clock(machine: Machine, now: float) -> Iterator[None]:
    """EventLog's clocks show `now` (true seconds) as this machine would."""
    with patch.object(events, "time", _Clock(machine, now)), patch.object(events, "_boot_id", lambda: machine.boot):
        yield


class Log:
    """One process. All times are true seconds."""

    def __init__(self, folder: Path, machine: Machine, at: float, source: str, **identity: Any) -> None:
        self._machine = machine
        with clock(machine, at):
            self._log = EventLog(folder, source, **identity)
        self.path = self._log.path

    def point(self, at: float, name: str, **fields: Any) -> None:
        self._log.point(name, at=at + self._machine.mono, **fields)

    def span(self, start: float, end: float, name: str, **fields: Any) -> None:
        with clock(self._machine, end):
            self._log.lasted(name, start + self._machine.mono, **fields)

    def close(self) -> None:
        self._log.close()


HERE = Machine()


class Run:
    """A run directory that fills with logs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs: list[Log] = []

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def process(self, at: float, source: str, machine: Machine = HERE, **identity: Any) -> Log:
        log = Log(self.path / "events", machine, at, source, **identity)
        self.logs.append(log)
        return log

    def rank(
        self,
        rank: int,
        at: float,
        *,
        generation: int = 1,
        cycle: int = 0,
        world: int = 2,
        pod: str | None = None,
        machine: Machine = HERE,
    ) -> Log:
        """A rank process that starts at `at`."""
        identity = {"rank": rank, "world_size": world, "generation": generation, "cycle": cycle}
        pod = f"worker-{rank}" if pod is None else pod
        log = self.process(at, "rank", machine, **identity, pod=pod, node=f"node-of-{pod}")
        log.point(at, "process_start")
        return log

    def ranks(self, at: float, count: int = 2, **identity: Any) -> list[Log]:
        return [self.rank(rank, at, world=count, **identity) for rank in range(count)]


def train(logs: list[Log], at: float, first: int, last: int, seconds: float = 1.0) -> float:
    """All ranks do steps first..last without a gap. Returns the time at which the last one ends."""
    for step in range(first, last + 1):
        for log in logs:
            log.span(at, at + seconds, "step", step=step)
        at += seconds
    return at


def begin(logs: list[Log], at: float, restart: int = 0) -> None:
    """All ranks enter train()."""
    for log in logs:
        log.point(at, "attempt_start", restart=restart)


def end(logs: list[Log], at: float, outcome: str, restart: int = 0, **fields: Any) -> None:
    """All ranks leave train()."""
    for log in logs:
        log.point(at, "attempt_end", restart=restart, outcome=outcome, **fields)


def ledger_of(run: Run) -> Ledger:
    """The ledger of what has been written so far; it adds up."""
    ledger = account(read_run(run.path))
    assert set(ledger.buckets) == set(BUCKETS)
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert min(ledger.buckets.values()) >= 0
    return ledger


def expect(ledger: Ledger, **seconds: float) -> None:
    """These buckets, and zero in every other one."""
    assert dict(ledger.buckets) == pytest.approx(dict.fromkeys(BUCKETS, 0.0) | seconds, abs=1e-6)
