"""`Faults`: when a fault is due, that it strikes once, and that there is a record of it before it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.config.fault_catalogue import catalogue
from holdfast.config.faults import OF_A_SAVE, OF_AN_ATTEMPT, Fault, FaultPhase
from holdfast.config.names import step_folder
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, write_once
from trainer.faults import rank_acts, stored, writer_acts
from trainer.runtime import Identity

if TYPE_CHECKING:
    import torch

SPIKE = 100.0
"""What a `loss_spike` multiplies the loss by."""
IN_WRITER = {
    ("slow_disk", "persist"): "persist",
    ("slow_disk", "commit"): "commit",
    ("full_disk", "persist"): "persist",
    ("readonly_disk", "persist"): "persist",
    ("readonly_disk", "commit"): "commit",
    ("writer_death", "persist"): "persist",
    ("writer_death", "commit"): "commit",
    # The copy may still be on its way when `stage` ends; when the writer begins, it is complete.
    ("bit_flip_staged", "stage"): "persist",
    ("bit_flip_stored", "persist"): "persist",
}
"""(kind, phase) -> the request to the writer process in which it is done; all others the rank does itself."""
LAST = {"exception": 1, "rank_oom": 1, "cuda_oom": 1, "cuda_error": 1, "hang": 2, "hang_gil": 2, "rank_sigkill": 3}
"""Of two at once, the one that ends the attempt comes after the other, and death last."""


class Faults:
    """One per process. `strike` is called in every phase, and costs one look at an empty list where nothing is due."""

    def __init__(
        self,
        faults: Iterable[Fault],
        run: RunDirectory,
        rank: int,
        log: EventLog,
        writer_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        """writer_pid: process id of this rank's writer, None if there is none."""
        mine = [fault for fault in faults if fault.rank == rank and not fault.by_runner]
        self._due = sorted(mine, key=lambda fault: LAST.get(fault.kind, 0))
        self._run = run
        self._rank = rank
        self._log = log
        self._writer_pid = writer_pid
        self._loss_factors: dict[int, float] = {}
        self._slow: Fault | None = None
        self._began = 0.0
        self._unresolved = False

    def strike(self, phase: FaultPhase, step: int = 0) -> None:
        """Do what is due at the beginning of this phase. step: of a save, the step after which it is made; of start_up
        and restore, none."""
        if self._slow is not None:
            self._dawdle(phase, step)
        if not self._due:
            return
        for fault in [fault for fault in self._due if fault.phase == phase and (fault.kind, phase) not in IN_WRITER]:
            if self._is_due(fault, step) and self._begins(fault, step):
                self._act(fault, step)

    def request(
        self, phase: FaultPhase, step: int, function: Callable[..., Any], folder: str, *arguments: Any
    ) -> tuple[Any, ...]:
        """(function, folder, *arguments) for the writer process, or the same under what is due in it."""
        asked: tuple[Any, ...] = (function, folder, *arguments)
        for fault in [one for one in self._due if IN_WRITER.get((one.kind, one.phase)) == phase]:
            if self._is_due(fault, step) and self._begins(fault, step):
                asked = (writer_acts.under, fault.kind, fault.for_s, fault.rank, fault.id, folder, *asked)
        return asked

    def on_loss(self, step: int, loss: torch.Tensor) -> torch.Tensor:
        """The loss of one forward pass, broken if a fault of this step says so; the gradient is broken with it."""
        factor = self._loss_factors.get(step)
        broken = loss if factor is None else loss * factor
        if any(fault.phase == "backward" and fault.step == step for fault in self._due):
            broken.register_hook(lambda _: self.strike("backward", step))
        return broken

    def resolved(self, identity: Identity) -> Identity:
        """The identity with which the process group is made: its store's name may not resolve."""
        if not self._unresolved or not identity.store:
            return identity
        self._unresolved = False
        host, _, port = identity.store.rpartition(":")
        return replace(identity, store=f"{host}{rank_acts.UNKNOWN_DOMAIN}:{port}")

    # --- when ---

    def _is_due(self, fault: Fault, step: int) -> bool:
        if fault.phase in OF_AN_ATTEMPT:
            due = fault.step == 1 or stored.newest(self._run.checkpoints) >= fault.step - 1
        elif fault.phase in OF_A_SAVE:
            due = step >= fault.step
        else:
            # A damaged checkpoint that is the only one would end the run; it waits for a second one.
            due = step == fault.step or (fault.kind == "bit_flip_stored" and step > fault.step)
        if due and fault.kind == "bit_flip_stored":
            return stored.number(self._run.checkpoints) >= (1 if fault.phase == "persist" else 2)
        return due

    def _begins(self, fault: Fault, step: int) -> bool:
        """Whether it strikes now. The record comes before the act: no restart fires it again."""
        self._due.remove(fault)
        if not write_once(self._run.faults / f"{fault.id}.json", fault.model_dump_json()):
            return False
        # What need not end the attempt is no failure to the ledger, and has another name.
        event = "fault" if catalogue().entries[fault.kind].ends == "attempt" else "disturbance"
        at = step or fault.step
        self._log.point(event, id=fault.id, kind=fault.kind, rank=fault.rank, step=at, phase=fault.phase)
        return True

    # --- what ---

    def _act(self, fault: Fault, step: int) -> None:
        act = rank_acts.ACTS.get(fault.kind)
        if act is not None:
            act(fault)
        elif fault.kind in ("nan_loss", "loss_spike"):
            self._loss_factors[step] = math.nan if fault.kind == "nan_loss" else SPIKE
        elif fault.kind == "slow_rank":
            self._slow, self._began = fault, time.monotonic()
        elif fault.kind == "dns_failure":
            self._unresolved = True
        elif fault.kind == "writer_death":
            rank_acts.kill(self._writer_pid())
        elif fault.kind == "bit_flip_stored":
            folder = self._run.checkpoints / step_folder(stored.newest(self._run.checkpoints))
            stored.flip_in([folder], fault.rank, fault.id)
        else:
            raise LookupError(f"{fault.id}: nothing here does {fault.kind} in phase {fault.phase}")

    def _dawdle(self, phase: FaultPhase, step: int) -> None:
        """A straggler's own work is done when it comes to the collective: then it waits as long as its factor says."""
        assert self._slow is not None
        if phase == "forward":
            self._began = time.monotonic()
            if step >= self._slow.step + self._slow.for_steps:
                self._slow = None
        elif phase == "collective":
            time.sleep((self._slow.factor - 1) * (time.monotonic() - self._began))
