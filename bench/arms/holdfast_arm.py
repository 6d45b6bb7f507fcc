"""Ours: the Checkpoints class as the training loop uses it, in a run directory of its own."""

from __future__ import annotations

from pathlib import Path

from bench.arms.arm import Arm
from bench.arms.workload import FAR, Workload
from holdfast.config import names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.stage import Stage
from trainer.checkpoint.writer import Writer
from trainer.restart.heartbeat import Pulse
from trainer.runtime import Attempt, Identity
from trainer.train import Survivors


class Holdfast(Arm):
    """Staged copy on a side stream, background write and commit, retention: all that a run does, nothing less."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self._run = RunDirectory(self.target)
        if work.rank == 0:
            self._run.take(nodes=1, job="bench", jobset_attempt=0, pod="bench", lease_s=0.1)
        work.barrier()
        owner = self._run.owner()
        assert owner is not None
        attempt = Attempt(owner.generation, 0, 0)
        identity = Identity(work.rank, work.world, work.rank, owner.generation, 0, "bench", "bench", "")
        log = EventLog(
            self._run.events, "rank", rank=work.rank, world_size=work.world, generation=owner.generation, cycle=0
        )
        survivors = Survivors(
            work.config, identity, self._run, self.target, log, Pulse(None), Writer(work.rank), Stage()
        )
        self._checkpoints = Checkpoints(survivors, attempt, work.model, work.optimizer, "bench")
        self._step = 0
        self._saved = 0

    def warm_up(self) -> None:
        self._checkpoints.restore()

    def save(self, index: int) -> None:
        self._saved = self._step = FAR * (index + 1)
        self._checkpoints.after_step(self._step)

    def between(self) -> None:
        self._checkpoints.between()

    def before_update(self) -> None:
        self._checkpoints.before_update()

    def after_step(self) -> None:
        self._step += 1
        self._checkpoints.after_step(self._step)

    def durable(self) -> bool:
        in_flight = self._checkpoints._saving.in_flight  # asked first: the marker is there before it ends
        committed = (self._folder_of(self._saved) / names.COMMITTED).exists()
        if self._saved and self.work.rank == 0 and not committed and not in_flight:
            raise RuntimeError(f"the save of step {self._saved} failed; the trainer has logged why")
        return committed

    def done(self) -> bool:
        """Committed, and what retention deletes is gone: our own deletions are counted as part of the save."""
        if not self.durable():
            return False
        kept = self.work.config.checkpoint.keep_last
        return len([name for name in self._run.checkpoints.iterdir() if name.is_dir()]) <= kept

    def _folder_of(self, step: int) -> Path:
        return self._run.checkpoints / names.step_folder(step)

    def folder(self, index: int) -> Path:
        return self._folder_of(FAR * (index + 1))

    def forget(self, index: int) -> None:
        """Retention does it."""
