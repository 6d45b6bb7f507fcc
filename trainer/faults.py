"""Faults on purpose: what the trainer can break in itself, at a given rank and step, once in the life of a run."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.config.schema import Fault
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, write_once

if TYPE_CHECKING:
    import torch

SPIKE = 100.0
"""What a `loss_spike` multiplies the loss by."""


DISTURBANCES = ("rank_sigstop", "nan_loss", "loss_spike")


class InjectedFault(RuntimeError):
    """The exception of the fault kind `exception`."""


class Faults:
    """Strikes when its rank reaches its step. The record comes before the act: no restart fires it again."""

    def __init__(self, faults: Iterable[Fault], run: RunDirectory, rank: int, log: EventLog) -> None:
        self._due = {fault.step: fault for fault in faults if fault.rank == rank and not fault.by_runner}
        self._run = run
        self._log = log
        self._loss_factors: dict[int, float] = {}

    def strike_if_due(self, step: int) -> None:
        """Called at the start of every step."""
        fault = self._due.pop(step, None)
        if fault is None or not write_once(self._run.faults / f"{fault.id}.json", fault.model_dump_json()):
            return
        # What need not end the attempt is no failure to the ledger, and has another name.
        event = "disturbance" if fault.kind in DISTURBANCES else "fault"
        self._log.point(event, id=fault.id, kind=fault.kind, rank=fault.rank, step=step)
        if fault.kind == "exception":
            raise InjectedFault(f"injected {fault.id}")
        if fault.kind == "rank_sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "rank_sigstop":
            pause(fault.for_s)
            return
        if fault.kind in ("nan_loss", "loss_spike"):
            self._loss_factors[step] = math.nan if fault.kind == "nan_loss" else SPIKE
            return
        _hang()

    def on_loss(self, step: int, loss: torch.Tensor) -> torch.Tensor:
        """The loss of one forward pass, broken if a fault of this step says so; the gradient is broken with it."""
        factor = self._loss_factors.get(step)
        return loss if factor is None else loss * factor


def pause(for_s: float) -> None:
    """SIGSTOP to this process, as a debugger does; a child of a child wakes it again after the time."""
    command = ["sh", "-c", f"(sleep {for_s}; kill -CONT {os.getpid()}) >/dev/null 2>&1 &"]
    subprocess.run(command, check=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang() -> None:
    """Stop calling collectives, but keep running bytecode: the restart layers can still raise in this thread."""
    while True:
        time.sleep(0.05)
