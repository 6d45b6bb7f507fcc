"""The save in flight: staged, handed to the writer, acknowledged by all ranks, committed. One at a time, never waited
for unless the next one is due.

Once all ranks have handed their part over, the writers come to the commit among themselves, through files; a trainer
only learns of it. Trainers tell one another what the files cannot say, through the attempt's store, by keys that are
looked at once per step: no collective.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import _get_default_store

from holdfast.checkpoint_folder import read_marker
from holdfast.config import names
from holdfast.run_directory import Terminal
from trainer.checkpoint import commit, persist
from trainer.checkpoint.acknowledgements import CalledOff
from trainer.checkpoint.commit import partial_folder
from trainer.checkpoint.persist import Equipment
from trainer.checkpoint.plan import make_plan
from trainer.checkpoint.retention import Retention
from trainer.checkpoint.segments import Handle
from trainer.checkpoint.stage import Stage
from trainer.checkpoint.writer import Ticket, Writer, WriterFailed
from trainer.runtime import Attempt

if TYPE_CHECKING:
    import torch

    from trainer.train import Survivors

logger = logging.getLogger(__name__)

POLL_S = 0.02
"""Pause between looks while something is waited for."""
OVER = "over"
"""Store key: rank 0 says what became of the save."""
COMMITTED = "committed"
FAILED = "failed"
"""Store key: set by a rank whose part will never come, with the reason."""
ANSWER_S = 1.0
"""Rank 0's writer stops to wait for parts so long before the save's limit, or a twentieth of it: time for the commit,
and for its answer, which comes before the writer would be killed as late."""


class SavesKeepFailing(Exception):
    """checkpoint.max_failed_saves saves in a row have failed."""


@dataclass
class _Save:
    """serial counts saves of this attempt and is the same on all ranks. A ticket: the writer has been asked to.

    acknowledged: this rank's part is durable. publish: rank 0's writer waits for all parts and commits. lost: why a
    part will never come: on rank 0 by the word of another rank, elsewhere this rank's own.
    """

    step: int
    serial: int
    folder: Path
    description: dict[str, Any]
    since: float
    write: Ticket | None = None
    acknowledged: bool = False
    publish: Ticket | None = None
    lost: str | None = None


class Saving:
    """Saves of one attempt to the shared storage. `prepare` first; then `begin`, `poll` in every step, `wait`."""

    def __init__(self, survivors: Survivors, attempt: Attempt) -> None:
        self._keep = survivors.config.checkpoint
        self._run = survivors.run
        self._log = survivors.log
        self._faults = survivors.faults
        self._rank = survivors.identity.rank
        self._world_size = survivors.identity.world_size
        self._writer: Writer = survivors.writer
        self._stage: Stage = survivors.stage
        self._attempt = attempt
        self._store = _get_default_store()
        self._serial = 0
        self._save: _Save | None = None
        self.retention = Retention(self._writer, self._keep.persist_timeout_s)
        self._failed_in_a_row = 0
        self._equipment: Equipment | None = None
        self.committed: int | None = None
        """Last step that this attempt is known to have committed. Ranks other than 0 learn it when they wait."""

    def prepare(self, live: dict[str, torch.Tensor]) -> None:
        """Bind the stage to the live tensors and plan the saves. Collective."""
        self._stage.bind(live)
        self._plan = make_plan(live, self._keep.writer_threads)

    @property
    def in_flight(self) -> bool:
        """Whether a save has begun and is neither committed nor given up."""
        return self._save is not None

    def begin(self, step: int, description: dict[str, Any]) -> None:
        """Stage the state after `step`. No save may be in flight. Returns when the copy has been launched."""
        self._equip()
        with self._log.span("stage", step=step, bytes=self._stage.bytes):
            self._stage.copy()
        self._faults.strike("stage", step)
        self._serial += 1
        folder = partial_folder(self._run, step, str(self._attempt), self._serial)
        self._save = _Save(step, self._serial, folder, description, time.monotonic())
        self.poll()

    def wait(self, limit_s: float | None = None) -> bool:
        """Until rank 0 has committed the save in flight or given it up; bounded, since a save that takes too long
        fails. Returns whether it is over, which it may not be after `limit_s`.

        All ranks wait here, in the checkpoint section, rather than in the next step's first collective.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        self._stage.launch()
        while self._save is not None:
            self.poll(waiting=True)
            if self._save is not None:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                time.sleep(POLL_S)
        return True

    def poll(self, waiting: bool = False) -> None:
        """Move the save in flight on, as far as it goes without waiting."""
        self.retention.look()
        save = self._save
        if save is None:
            return
        try:
            self._write(save)
            if save.acknowledged and (self._committed(save) if self._rank == 0 else waiting and self._resolved(save)):
                self._save = None
        except (WriterFailed, OSError) as error:
            commit.raise_if_stale(error)
            self._fail(save, error)

    # --- the stages ---

    def _equip(self) -> None:
        """Tell the writer what all saves have in common, before the first one: the buffers are there by then."""
        if self._equipment is not None:
            return
        self._equipment = Equipment(
            rank=self._rank,
            world_size=self._world_size,
            run_dir=self._run.path,
            attempt=str(self._attempt),
            generation=self._attempt.generation,
            keep=self._keep,
            plan=self._plan,
            layout=self._stage.layout,
            segments=tuple(Handle.of(segment) for segment in self._stage.segments()),
        )
        self._writer.prepare(persist.equip, self._equipment)

    def _write(self, save: _Save) -> None:
        """Hand over once the copy is complete; see whether this rank's part is durable."""
        if save.write is None:
            if not self._stage.done():
                self._require_in_time(save)
                return
            write = self._faults.request("persist", save.step, persist.write_shard, str(save.folder))
            save.write = self._writer.submit(*write)
            if self._rank == 0:
                save.publish = self._ask_for_commit(save)
            self._faults.strike("persist", save.step)
        if save.acknowledged:
            return
        written = self._writer.result(save.write, self._keep.persist_timeout_s)
        if written is not None:
            save.acknowledged = True
            self._log.lasted("write", save.write.since, step=save.step, **written)
            self._faults.strike("commit", save.step)

    def _ask_for_commit(self, save: _Save) -> Ticket:
        """Queued behind the write, so that no trainer is needed any more. Rank 0 only."""
        limit_s = self._keep.persist_timeout_s
        deadline = save.since + limit_s - min(ANSWER_S, limit_s / 20)
        arguments = (str(save.folder), save.serial, save.description, deadline)
        return self._writer.submit(*self._faults.request("commit", save.step, commit.publish, *arguments))

    def _committed(self, save: _Save) -> bool:
        """Whether the writer has committed the step. Calls it off if a part will never come. Rank 0 only."""
        assert save.publish is not None
        if save.lost is None and self._store.check([self._key(save, FAILED)]):
            save.lost = self._store.get(self._key(save, FAILED)).decode()
            self._writer.call_off(save.publish)
        # Too late, the writer is killed: whether the step is committed is then a fact, and not a race.
        left = self._keep.persist_timeout_s - (save.publish.since - save.since)
        try:
            published = self._writer.result(save.publish, max(left, POLL_S))
        except WriterFailed as error:
            raise WriterFailed(save.lost) if save.lost and error.kind == CalledOff.__name__ else error from None
        if published is None:
            return False
        self._conclude(save, published["acknowledged_at"], published["committed_at"])
        return True

    def _conclude(self, save: _Save, acknowledged_at: float, committed_at: float) -> None:
        """The step is committed. Times are monotonic: this process may learn of it a step later. Rank 0 only."""
        self._store.set(self._key(save, OVER), COMMITTED)
        self._failed_in_a_row = 0
        self.committed = save.step
        whole = {"step": save.step, "bytes": self._stage.bytes * self._world_size}
        self._log.point("publish", at=acknowledged_at, dur=committed_at - acknowledged_at, step=save.step)
        self._log.point("persist", at=save.since, dur=committed_at - save.since, **whole)
        self._log.point("commit", at=committed_at, step=save.step)
        logger.info("committed step %d", save.step)
        self.retention.begin()

    def _resolved(self, save: _Save) -> bool:
        """Whether rank 0 has said what became of the save."""
        if not self._store.check([self._key(save, OVER)]):
            if save.lost is None:
                self._require_in_time(save)
            return self._is_late(save)  # its own part has failed, which was said already
        if self._store.get(self._key(save, OVER)).decode() == COMMITTED:
            self.committed = save.step
        return True

    def _is_late(self, save: _Save) -> bool:
        return time.monotonic() - save.since > self._keep.persist_timeout_s

    def _require_in_time(self, save: _Save) -> None:
        if self._is_late(save):
            limit = f"checkpoint.persist_timeout_s={self._keep.persist_timeout_s:g}"
            raise WriterFailed(f"step {save.step} was not acknowledged by all ranks within {limit}")

    def _key(self, save: _Save, what: str) -> str:
        return f"save/{save.serial}/{what}"

    # --- what goes wrong ---

    def _fail(self, save: _Save, error: Exception) -> None:
        """What became of a save that did not go well."""
        begun = self._rank == 0 and save.acknowledged  # the writer commits behind its own part only
        marker = read_marker(self._run.checkpoints / names.step_folder(save.step)) if begun else None
        if marker is not None and marker.attempt == str(self._attempt):
            # The rename of the marker is the commit, whatever failed behind it.
            logger.warning("step %d is committed, although: %s", save.step, error)
            self._save = None
            now = time.monotonic()
            self._conclude(save, now, now)
            return
        part_failed = self._rank != 0 and not save.acknowledged
        save.lost = str(error)
        save.acknowledged = True
        # Whose part failed waits for rank 0's word like all others, here and not in the next step's collective.
        self._save = save if part_failed else None
        self._count_failure(save, error)

    def _count_failure(self, save: _Save, error: Exception) -> None:
        """A failed save does not stop training; a row of them does, since ever more work would be lost."""
        logger.error("save of step %d failed: %s", save.step, error)
        self._log.point("save_failed", step=save.step, error=str(error))
        if self._rank != 0:
            self._store.set(self._key(save, FAILED), str(error))
            return
        self.retention.discard(save.folder)
        self._store.set(self._key(save, OVER), FAILED)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._keep.max_failed_saves:
            self._give_up(save, error)

    def _give_up(self, save: _Save, error: Exception) -> None:
        reason = (
            f"{self._failed_in_a_row} saves in a row failed "
            f"(checkpoint.max_failed_saves={self._keep.max_failed_saves}), "
            f"the last at step {save.step}: {error}. Committed checkpoints are untouched."
        )
        self._run.write_terminal(
            Terminal(names.EXIT_GIVE_UP, reason, rank=self._rank, step=save.step, attempt=str(self._attempt)),
            self._attempt.generation,
        )
        raise SavesKeepFailing(reason)
