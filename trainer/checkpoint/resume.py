"""Resume: the start of an attempt. Clean up after dead ones, agree on a step, refuse another experiment, load."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from holdfast import lineage
from holdfast.config import ConfigError, Problem, RunConfig, names
from holdfast.goodput.events import EventLog
from holdfast.leases import Lease
from holdfast.lineage import Begun
from holdfast.run_directory import RunDirectory, write_once
from trainer.checkpoint import restore, state
from trainer.checkpoint.near import Near
from trainer.checkpoint.prune import remove_partials, set_newer_aside
from trainer.checkpoint.stage import local_part
from trainer.runtime import Attempt

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Resume:
    """What an attempt knows when it looks for a checkpoint. fingerprint: of the data."""

    config: RunConfig
    run: RunDirectory
    attempt: Attempt
    rank: int
    log: EventLog
    fingerprint: str

    def into(self, live: dict[str, torch.Tensor], near: Near | None = None) -> int:
        """Load the newest whole committed step of all ranks into `live`; 0 for a fresh start. Collective.

        near: the local tier, from which a step is taken that is newer than the newest on the shared storage.

        Nobody may save before it has returned everywhere. Raises NoCheckpoint or ConfigError, on all ranks alike, where
        going on would be wrong; OSError, on all ranks alike, if the run's records cannot be read or written now: the
        next attempt may be luckier. StaleAttempt or StaleGeneration on rank 0 if a newer attempt has begun.
        """
        begun, removed = self._by_rank_0(self._begin) or ([], [])  # nobody lists the folder while rank 0 cleans it
        found = restore.candidates(self.run.checkpoints, self._asked_step(), begun)
        step, messages = self._load_newest_whole(found, live, near)
        if step is None:
            restore.require_none_needed(
                self.run.checkpoints, found, [*found.messages, *messages], self.config.resume.must_resume
            )
            logger.info("fresh start: no committed checkpoint in %s", self.run.checkpoints)
        passed_over = [message for message in [*found.messages, *messages] if _newer(message, step)]
        half_written = [f"{name}: half-written, removed" for name in removed]
        # The first save comes after `started`: without it a commit would not belong to the history.
        self._by_rank_0(lambda: self._go_on(step, [*passed_over, *half_written]))
        return step or 0

    def _by_rank_0(self, work: Callable[[], T]) -> T | None:
        """Do it on rank 0 while the others wait. The answer is rank 0's alone; its OSError is raised on all ranks: they
        would wait for it until the process group's timeout."""
        answer, failure = None, None
        if self.rank == 0:
            try:
                answer = work()
            except OSError as error:
                failure = error
        told = [None if failure is None else str(failure)]
        dist.broadcast_object_list(told, src=0)
        if failure is not None:
            raise failure
        if told[0] is not None:
            raise OSError(told[0])
        return answer

    def _begin(self) -> tuple[list[Begun], list[str]]:
        """Become the current attempt: from here on, whatever aborted ones still try to commit is refused."""
        lineage.begin(self.run, str(self.attempt), self.attempt.generation, self._adopted())
        removed = remove_partials(self.run, self.attempt)
        return lineage.read(self.run), removed

    def _adopted(self) -> list[Begun]:
        """The history of a run that has committed steps and no record of how it came to them."""
        if not lineage.knows_nothing(lineage.read(self.run)):
            return []
        saved = restore.without_a_record(self.run.checkpoints)
        for step, attempt in saved:
            logger.warning("no record of attempts: step %d, by %s, counts as this run's history", step, attempt)
        return lineage.adopted(saved)

    def _go_on(self, step: int | None, messages: list[str]) -> None:
        """Put on record where training goes on."""
        self._tell(messages)
        lineage.started(self.run, str(self.attempt), step or 0)
        if step is not None:
            self._leave_newer_behind(step)

    def _load_newest_whole(
        self, found: restore.Candidates, live: dict[str, torch.Tensor], near: Near | None
    ) -> tuple[int | None, list[str]]:
        """Load one candidate after the other until one turns out to be whole. Damage is known after loading only.

        Before each step of the shared storage, what the nodes hold of later ones. Not where a step was asked for.
        """
        start = time.monotonic()
        near = near if found.asked is None else None
        messages: list[str] = []
        for step in (*found.steps, 0):
            if near is not None and (newer := near.restore(above=step)) is not None:
                return newer, [*messages, *near.passed_over]
            if step == 0:
                break
            with self._lease(step):
                problems = self._load(step, live, start)
            if not problems:
                return step, [*messages, *(near.passed_over if near is not None else ())]
            messages += problems
        return None, [*messages, *(near.passed_over if near is not None else ())]

    def _lease(self, step: int) -> AbstractContextManager[object]:
        return Lease(self.run.checkpoints, step, f"attempt {self.attempt}") if self.rank == 0 else nullcontext()

    def _load(self, step: int, live: dict[str, torch.Tensor], since: float) -> list[str]:
        """Load a step, or say what is wrong with it."""
        opened, problems = restore.open_step(self.run.checkpoints / names.step_folder(step), self.config.checkpoint)
        if opened is None:
            return problems
        self._require_same_experiment(opened.description)
        start = time.monotonic()
        problems = restore.load(opened, live)
        if problems:
            logger.warning("step %d is damaged: %s", step, "; ".join(problems))
            return problems
        size = sum(local_part(tensor).nbytes for tensor in live.values())
        seconds = time.monotonic() - start
        self.log.lasted("restore", since, step=step, bytes=size, tier="shared")
        rate = size / 1e9 / seconds
        logger.info("restored step %d: %.3f GB in %.2f s, %.2f GB/s on this rank", step, size / 1e9, seconds, rate)
        return []

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
        return self.run.attempts / names.resumed_record(owner.incarnation, self.config.resume.step)

    def _asked_step(self) -> int | None:
        record = self._asked_record()
        return None if record is None or record.exists() else self.config.resume.step

    def _leave_newer_behind(self, step: int) -> None:
        for name in set_newer_aside(self.run, step, self.attempt):
            logger.warning("%s was set aside: training goes on from step %d", name, step)
        record = self._asked_record()
        if record is not None:
            write_once(record, "")

    def _require_same_experiment(self, saved: dict[str, Any]) -> None:
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


def _newer(message: str, step: int | None) -> bool:
    """Only what lies beyond the loaded step is worth a word; older leftovers are pruned in silence."""
    digits = message.removeprefix(names.STEP_PREFIX)[:8]
    return step is None or (digits.isdigit() and int(digits) > step)
