"""Faults on purpose: what the trainer can break in itself, at a given rank and step, once in the life of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from holdfast.config.schema import Fault
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, write_once


class InjectedFault(RuntimeError):
    """The exception of the fault kind `exception`."""


class Faults:
    """Strikes when its rank reaches its step. The record comes before the act: no restart fires it again."""

    def __init__(self, faults: Iterable[Fault], run: RunDirectory, rank: int, log: EventLog) -> None:
        self._due = {fault.step: fault for fault in faults if fault.rank == rank and not fault.by_runner}
        self._run = run
        self._log = log

    def strike_if_due(self, step: int) -> None:
        """Called at the start of every step."""
        fault = self._due.pop(step, None)
        if fault is None or not write_once(self._run.faults / f"{fault.id}.json", fault.model_dump_json()):
            return
        self._log.point("fault", id=fault.id, kind=fault.kind, rank=fault.rank, step=step)
        if fault.kind == "exception":
            raise InjectedFault(f"injected {fault.id}")
        if fault.kind == "rank_sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        _hang()


def _hang() -> None:
    """Stop calling collectives, but keep running bytecode: the restart layers can still raise in this thread."""
    while True:
        time.sleep(0.05)
