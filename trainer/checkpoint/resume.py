"""Resume: the start of an attempt. Clean up after dead ones, agree on a step, refuse another experiment, load."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.config import ConfigError, Problem, RunConfig, names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, read_json, write_once
from trainer.checkpoint import restore, state
from trainer.checkpoint.prune import remove_partials, set_newer_aside
from trainer.runtime import Attempt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """What an attempt knows when it looks for a checkpoint. fingerprint: of the data."""

    config: RunConfig
    run: RunDirectory
    attempt: Attempt
    rank: int
    log: EventLog
    fingerprint: str

    def into(self, live: dict[str, torch.Tensor]) -> int:
        """Load the newest committed step that all ranks agree on into `live`; 0 for a fresh start. Collective.

        Raises NoCheckpoint or ConfigError, on all ranks alike, where going on would be wrong.
        """
        removed = self._clean_up()
        step, passed_over = restore.agree(
            self.run.checkpoints,
            self._asked_step(),
            self.config.resume.must_resume,
            self.config.checkpoint.verify == "full",
        )
        if self.rank == 0:
            self._tell([*passed_over, *(f"{name}: half-written, removed" for name in removed)])
        if step is None:
            logger.info("fresh start: no committed checkpoint in %s", self.run.checkpoints)
            return 0
        folder = self.run.checkpoints / names.step_folder(step)
        self._require_same_experiment(folder / "state.json")
        self._load(folder, step, live)
        if self.rank == 0:
            self._leave_newer_behind(step)
        return step

    def _clean_up(self) -> list[str]:
        removed = remove_partials(self.run, self.attempt) if self.rank == 0 else []
        dist.barrier()  # nobody lists the folder while rank 0 cleans it
        return removed

    def _tell(self, messages: list[str]) -> None:
        for message in messages:
            logger.warning("skipped %s", message)
            folder, _, why = message.partition(": ")
            self.log.point("skipped", folder=folder, why=why)

    def _asked_record(self) -> Path | None:
        """Says that resume.step was obeyed. It holds once for each time that a job is started by hand: the job's own
        restarts go on from what it has committed since, instead of going back again and again."""
        owner = self.run.owner()
        if self.config.resume.step is None or owner is None:
            return None
        return self.run.attempts / f"resumed-{owner.incarnation}-at-{self.config.resume.step}"

    def _asked_step(self) -> int | None:
        record = self._asked_record()
        return None if record is None or record.exists() else self.config.resume.step

    def _leave_newer_behind(self, step: int) -> None:
        for name in set_newer_aside(self.run, step, self.attempt):
            logger.warning("%s was set aside: training goes on from step %d", name, step)
        record = self._asked_record()
        if record is not None:
            write_once(record, "")

    def _require_same_experiment(self, path: Path) -> None:
        saved = read_json(path)
        if saved is None:
            raise restore.NoCheckpoint(f"{path}: unreadable")
        differing = state.differing_keys(saved, self.config, self.fingerprint)
        if differing:
            raise ConfigError(
                Problem(
                    key,
                    now,
                    f"the checkpoint was made with {then!r}",
                    f"restore the old value, start a new run, or list {key} in resume.allow_changes",
                )
                for key, (then, now) in differing.items()
            )

    def _load(self, folder: Path, step: int, live: dict[str, torch.Tensor]) -> None:
        start = time.monotonic()
        size = restore.load(folder, live)
        seconds = time.monotonic() - start
        self.log.lasted("restore", start, step=step, bytes=size)
        rate = size / 1e9 / seconds
        logger.info("restored step %d: %.3f GB in %.2f s, %.2f GB/s on this rank", step, size / 1e9, seconds, rate)
