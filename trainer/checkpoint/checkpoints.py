"""`Checkpoints`: what the training loop sees of checkpointing: when state is saved, where to, and what is restored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from holdfast import lineage
from holdfast.checkpoint_folder import read_marker
from holdfast.config import names
from trainer import optimizer as optimizers
from trainer.checkpoint import state
from trainer.checkpoint.near import Near
from trainer.checkpoint.resume import Resume
from trainer.checkpoint.saving import Saving
from trainer.runtime import Attempt

if TYPE_CHECKING:
    from trainer.train import Survivors


URGENT_TRIES = 2
"""A first save may end with the writer, whose replacement can make a second one; a third would meet the same end."""


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
        self._writer = survivors.writer
        self._attempt = attempt
        self._fingerprint = fingerprint
        state.prepare_optimizer(model, optimizer)
        self._live = state.live_tensors(model, optimizer)
        self._stage = survivors.stage
        self._saving = Saving(survivors, attempt)
        self._near = None if survivors.local is None else Near(survivors, attempt, survivors.local, fingerprint)

    # --- start of an attempt ---

    def restore(self) -> int:
        """Load the newest step that all ranks agree on, from the shared storage or from the nodes; 0 for a fresh
        start. Collective."""
        if self._keep.mode == "off":
            return 0
        if self._writer.busy:
            self._writer.abort()  # it is still writing for an attempt that is over
        self._writer.start()
        if self._near is not None:
            self._near.prepare(self._live)
        self._saving.prepare(self._live)
        resume = Resume(self._config, self._run, self._attempt, self._rank, self._log, self._fingerprint)
        step = resume.into(self._live, self._near)
        if self._near is not None:
            self._near.start(step)
        return step

    # --- in every step ---

    def between(self) -> None:
        """Call when a forward pass has been launched: the host launches a due copy now, while the GPU is busy."""
        self._stage.launch()
        if self._near is not None:
            self._near.between()

    def before_update(self) -> None:
        """Call before anything changes parameters or optimizer state: waits for the staging copy only."""
        self._stage.wait()
        if self._near is not None:
            self._near.before_update()

    def look_after(self) -> None:
        """Move the save in flight on. For a caller that does something long between two steps."""
        self._stage.launch()
        self._saving.poll()

    def after_step(self, step: int) -> None:
        """Look after the save in flight; begin a new one if `step` is due."""
        self._saving.poll()
        if self._near is not None:
            self._near.after_step(step)
        due = step % self._keep.interval_steps == 0 or step == self._config.training.steps
        if self._keep.mode == "off" or not due:
            return
        if self._saving.in_flight:
            with self._log.span("checkpoint_wait", step=step):
                self._saving.wait()
        self._begin(step)
        if self._keep.mode == "sync":
            with self._log.span("checkpoint_wait", step=step):
                self._saving.wait()

    def save_urgently(self, step: int, limit_s: float) -> bool:
        """Commit the state after `step`, due or not, and wait for it at most `limit_s`. Call on all ranks after the
        same step. A save that fails is tried once more while time is left. False: it was not possible in time, and the
        commit before it stands.
        """
        if self._keep.mode == "off":
            return False
        deadline = time.monotonic() + limit_s
        with self._log.span("checkpoint_wait", step=step):
            over, tries = self._saving.wait(limit_s), 0
            while over and self._saving.committed != step and tries < URGENT_TRIES and time.monotonic() < deadline:
                tries += 1
                self._begin(step)
                over = self._saving.wait(max(0.0, deadline - time.monotonic()))
        return self._saving.committed == step

    def finish(self) -> None:
        """Wait for the last save, write COMPLETE. Raises SavesKeepFailing if it could not be committed."""
        steps = self._config.training.steps
        if self._keep.mode != "off":
            with self._log.span("drain", step=steps):
                self._saving.wait()
                self._retry_last(steps)
                self._saving.retention.finish(self._config.recovery.process_group_timeout_s / 2)
        if self._rank == 0:
            self._run.require_generation(self._attempt.generation)
            self._run.write_complete(step=steps, attempt=str(self._attempt))
        dist.barrier()  # COMPLETE exists before any rank ends, so that no pod ends without it

    def _begin(self, step: int) -> None:
        rate = optimizers.learning_rate(self._config, step)
        world_size = dist.get_world_size()
        description = state.description(self._config, self._attempt, step, rate, self._fingerprint, world_size)
        self._saving.begin(step, description)

    def _retry_last(self, steps: int) -> None:
        """The last step's state is the result of the whole run: try again while the rule for failed saves allows."""
        while not self._is_committed(steps):
            self._begin(steps)
            self._saving.wait()

    def _is_committed(self, step: int) -> bool:
        """Whether `step` is committed on the way to the present. Rank 0 looks, all do as it says. Collective."""
        committed = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            marker = read_marker(self._run.checkpoints / names.step_folder(step))
            ours = marker is not None and lineage.in_history(lineage.read(self._run), marker.attempt, step)
            committed += int(ours)
        dist.broadcast(committed, 0)
        return bool(committed.item())
