"""`Checkpoints`: what the training loop sees of checkpointing, and the state machine of the save in flight."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from holdfast.config import names
from holdfast.run_directory import Terminal, read_json
from trainer import optimizer as optimizers
from trainer.checkpoint import state
from trainer.checkpoint.commit import partial_folder, try_commit
from trainer.checkpoint.persist import WriterFailed, reason_left
from trainer.checkpoint.plan import make_plan
from trainer.checkpoint.prune import prune
from trainer.checkpoint.resume import Resume
from trainer.runtime import Attempt

if TYPE_CHECKING:
    from trainer.train import Survivors

logger = logging.getLogger(__name__)

POLL_S = 0.02
"""Pause between looks while something is waited for."""


class SavesKeepFailing(Exception):
    """checkpoint.max_failed_saves saves in a row have failed."""


@dataclass
class _Save:
    """The save in flight. serial counts saves of this attempt and is the same on all ranks. handed: the writer has it.
    mine: this rank's part is written."""

    step: int
    serial: int
    folder: Path
    since: float
    handed: bool = False
    mine: bool = False


class Checkpoints:
    """One per attempt. `restore` first; then in every step `before_update` and `after_step`; `finish` at the end."""

    def __init__(
        self,
        survivors: Survivors,
        attempt: Attempt,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        fingerprint: str,
    ) -> None:
        self._config = survivors.config
        self._keep = survivors.config.checkpoint
        self._run = survivors.run
        self._log = survivors.log
        self._rank = survivors.identity.rank
        self._world_size = survivors.identity.world_size
        self._writer = survivors.writer
        self._attempt = attempt
        self._fingerprint = fingerprint
        self._store = _get_default_store()
        self._serial = 0
        self._save: _Save | None = None
        self._failed_in_a_row = 0
        state.prepare_optimizer(model, optimizer)
        self._live = state.live_tensors(model, optimizer)
        self._stage = survivors.stage
        self._ready = False

    # --- start of an attempt ---

    def restore(self) -> int:
        """Load the newest committed step that all ranks agree on; 0 for a fresh start. Collective."""
        if self._keep.mode == "off":
            return 0
        if self._writer.busy:
            self._writer.abort()  # it is still writing for an attempt that is over
        self._writer.warm_up()
        resume = Resume(self._config, self._run, self._attempt, self._rank, self._log, self._fingerprint)
        step = resume.into(self._live)
        self._stage.bind(self._live)
        self._ready = True
        self._plan = make_plan(self._live, self._stage.staged, self._keep.writer_threads)
        return step

    # --- in every step ---

    def before_update(self) -> None:
        """Call before anything changes parameters or optimizer state: waits for the staging copy only."""
        self._stage.wait()

    def after_step(self, step: int) -> None:
        """Look after the save in flight; begin a new one if `step` is due."""
        self._poll()
        due = step % self._keep.interval_steps == 0 or step == self._config.training.steps
        if self._keep.mode == "off" or not due:
            return
        if self._save is not None:
            with self._log.span("checkpoint_wait", step=step):
                self._wait()
        self._begin(step)
        if self._keep.mode == "sync":
            with self._log.span("checkpoint_wait", step=step):
                self._wait()

    def finish(self) -> None:
        """Wait for the last save, write COMPLETE. Raises SavesKeepFailing if it could not be committed."""
        steps = self._config.training.steps
        if self._keep.mode != "off":
            with self._log.span("drain", step=steps):
                self._wait()
                self._retry_last(steps)
        if self._rank == 0:
            self._run.require_generation(self._attempt.generation)
            self._run.write_complete(step=steps, attempt=str(self._attempt))
        dist.barrier()  # COMPLETE exists before any rank ends, so that no pod ends without it

    def _retry_last(self, steps: int) -> None:
        """The last step's state is the result of the whole run: try again while the rule for failed saves allows."""
        while not self._everyone_sees(steps):
            self._begin(steps)
            self._wait()

    def _everyone_sees(self, step: int) -> bool:
        marker = self._run.checkpoints / names.step_folder(step) / names.COMMITTED
        seen = torch.tensor([int(read_json(marker) is not None)])
        dist.all_reduce(seen, op=dist.ReduceOp.MIN)
        return bool(seen.item())

    # --- the save in flight ---

    def _begin(self, step: int) -> None:
        assert self._ready, "restore() comes first"
        with self._log.span("stage", step=step, bytes=self._stage.bytes):
            self._stage.copy()
        self._serial += 1
        folder = partial_folder(self._run, step, self._attempt, self._serial)
        self._save = _Save(step, self._serial, folder, time.monotonic())
        self._poll()

    def _wait(self) -> None:
        """Until rank 0 has committed the save in flight or given it up; bounded, since a save that takes too long
        fails.

        All ranks wait here, in the checkpoint section, rather than in the next step's first collective.
        """
        while self._save is not None:
            self._poll(waiting=True)
            if self._save is not None:
                time.sleep(POLL_S)

    def _poll(self, waiting: bool = False) -> None:
        """Move the save in flight on, as far as it goes without waiting."""
        save = self._save
        if save is None:
            return
        try:
            if not save.handed and self._stage.done():
                self._writer.write(self._plan, save.folder)
                save.handed = True
            if save.handed and not save.mine:
                save.mine = self._writer.poll(self._keep.persist_timeout_s)
            if save.mine and (self._committed(save) if self._rank == 0 else waiting and self._resolved(save)):
                self._save = None
        except (WriterFailed, OSError) as error:
            self._save = None
            self._count_failure(save, error)

    def _resolved(self, save: _Save) -> bool:
        """Whether rank 0 has said what became of the save."""
        self._require_in_time(save)
        return bool(self._store.check([self._key(save, "over")]))

    def _key(self, save: _Save, what: str) -> str:
        """Key in the attempt's store: `over` is set by rank 0, `failed` by a rank whose part will never come."""
        return f"save/{save.serial}/{what}"

    def _require_in_time(self, save: _Save) -> None:
        if time.monotonic() - save.since > self._keep.persist_timeout_s:
            limit = f"checkpoint.persist_timeout_s={self._keep.persist_timeout_s}"
            raise WriterFailed(f"step {save.step} was not acknowledged by all ranks within {limit}")

    def _committed(self, save: _Save) -> bool:
        """Commit if all ranks have acknowledged. Rank 0 only."""
        self._require_in_time(save)
        if self._store.check([self._key(save, "failed")]):
            raise WriterFailed(self._store.get(self._key(save, "failed")).decode())
        rate = optimizers.learning_rate(self._config, save.step)
        description = state.description(self._config, self._attempt, save.step, rate, self._fingerprint)
        assert self._plan.metadata is not None
        if not try_commit(self._run, save.folder, self._attempt, self._world_size, self._plan.metadata, description):
            return False
        self._store.set(self._key(save, "over"), "committed")
        self._failed_in_a_row = 0
        self._log.lasted("persist", save.since, step=save.step)
        self._log.point("commit", step=save.step)
        logger.info("committed step %d", save.step)
        self._prune()
        return True

    def _prune(self) -> None:
        """Apply retention. What cannot be deleted now is tried again after the next commit."""
        try:
            prune(self._run, self._keep, self._attempt)
        except OSError as error:
            logger.warning("old checkpoints could not be deleted: %s", error)

    def _count_failure(self, save: _Save, error: Exception) -> None:
        """A failed save does not stop training; a row of them does, since ever more work would be lost."""
        why = f"{error}{reason_left(save.folder, self._rank)}"
        logger.error("save of step %d failed: %s", save.step, why)
        self._log.point("save_failed", step=save.step, error=why)
        if self._rank != 0:
            self._store.set(self._key(save, "failed"), why)
            return
        shutil.rmtree(save.folder, ignore_errors=True)
        self._store.set(self._key(save, "over"), "failed")
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._keep.max_failed_saves:
            reason = (
                f"{self._failed_in_a_row} saves in a row failed "
                f"(checkpoint.max_failed_saves={self._keep.max_failed_saves}), "
                f"the last at step {save.step}: {why}. Committed checkpoints are untouched."
            )
            self._run.write_terminal(
                Terminal(names.EXIT_GIVE_UP, reason, rank=self._rank, step=save.step, attempt=str(self._attempt)),
                self._attempt.generation,
            )
            raise SavesKeepFailing(reason)
