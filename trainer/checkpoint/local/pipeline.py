"""`LocalPipeline`: local saves as the training loop sees them. Nothing here waits, and no step has a collective more.

A save is of use only if all ranks make it, and skipping is better than waiting for a slow disk. So rank 0 decides one
step ahead: in the step before a save is due it sets a key, if all ranks are done with the save before. Every rank reads
its loss in the step in between, which no rank has before rank 0 has begun that step too; so all see the same.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from holdfast.config import RunConfig
from holdfast.goodput.events import EventLog
from trainer.checkpoint.local.exchange import Limits
from trainer.checkpoint.local.find import neighbour
from trainer.checkpoint.local.part import Save
from trainer.checkpoint.local.persist import LocalEquipment, equip_local, receiver_port, save_local
from trainer.checkpoint.segments import Handle, StagingFailed
from trainer.checkpoint.stage import Stage
from trainer.checkpoint.writer import Ticket, Writer, WriterFailed

logger = logging.getLogger(__name__)

IDLE_S = 30.0
"""Longest pause of the peer in a copy between neighbours."""


@dataclass(frozen=True)
class Seat:
    """Who this rank is in the attempt. host: address at which its neighbours reach it. token: of the generation."""

    attempt: str
    rank: int
    world_size: int
    host: str
    token: str


@dataclass
class _InFlight:
    """A save of this rank. ticket: the writer has it."""

    save: Save
    keep: tuple[str, ...]
    since: float
    ticket: Ticket | None = None


class LocalPipeline:
    """One per attempt, with a stage and a writer of its own. `start`, then `after_step` in every step, `close`.

    The caller makes the optimizer wait for the stage (`stage.wait`), as for that of the shared tier.
    """

    def __init__(
        self,
        config: RunConfig,
        seat: Seat,
        folder: Path,
        layout_hash: str,
        stage: Stage,
        writer: Writer,
        store: dist.Store,
        log: EventLog,
    ) -> None:
        """folder: this node's (restore.folder_of). store: one whose keys no other attempt uses."""
        self._config = config
        self._keep_last = config.checkpoint.local.keep_last
        self._limit_s = config.checkpoint.persist_timeout_s
        self._seat = seat
        self._stage = stage
        self._writer = writer
        self._store = store
        self._log = log
        other = neighbour(seat.rank, config.cluster.ranks_per_node, seat.world_size)
        self._neighbour = other if config.checkpoint.local.replicate else None
        # A neighbour's part may be a little larger than ours; the padding of segments differs by rank.
        limits = Limits(2 * stage.bytes + (1 << 20), min(IDLE_S, self._limit_s / 4), self._limit_s / 2)
        host = None if self._neighbour is None else seat.host
        self._equipment = LocalEquipment(folder, seat.rank, seat.world_size, layout_hash, host, seat.token, limits)
        self._serial = 0
        self._save: _InFlight | None = None
        self._asked: Ticket | None = None
        """The request for the receiver's port."""
        self._listens = self._neighbour is None
        """Whether the others know where this rank listens, or need not."""
        self._address: str | None = None
        """The neighbour's, as far as known."""
        self._unsettled: Save | None = None
        """Rank 0: the last save, until all ranks are done with it."""
        self._whole: list[str] = []
        """Rank 0: folder names of saves that all ranks have made."""

    def due(self, step: int) -> bool:
        """Whether a local save is due after `step`: not where the shared tier saves, whose copy takes its place."""
        c = self._config.checkpoint
        every = c.local.interval_steps
        if every is None or c.mode != "async":
            return False
        return step % every == 0 and step % c.interval_steps != 0 and step != self._config.training.steps

    @property
    def busy(self) -> bool:
        """Whether this rank's part of a save is being staged, written or copied."""
        return self._save is not None

    def start(self, step: int, restored: Save | None) -> None:
        """Training goes on from `step`. restored: the local save that it was read from; it is kept until others are
        complete."""
        self._whole = [] if restored is None else [restored.folder]
        if self._writer.busy:
            self._writer.abort()  # it is still writing for an attempt that is over
        self._writer.prepare(equip_local, self._equipment)
        self._ask()
        self._decide(step + 1)

    def after_step(self, step: int) -> None:
        """Look after the save in flight; begin one if it is due and agreed."""
        self.poll()
        if self.due(step) and self._store.check([f"local/go/{step}"]):
            self._begin(step, tuple(json.loads(self._store.get(f"local/go/{step}"))))
        self._decide(step + 1)

    def close(self) -> None:
        """End the writer, and what it is doing."""
        self._save = None
        self._writer.close()

    def poll(self) -> None:
        """Move the save in flight on, as far as it goes without waiting."""
        try:
            if self._asked is None or self._heard():
                self._advance()
        except WriterFailed as error:
            self._failed(error)
        self._settle()

    # --- agreement ---

    def _decide(self, step: int) -> None:
        """Rank 0: say that all ranks save at `step`, and what they keep meanwhile."""
        if self._seat.rank != 0 or not self.due(step):
            return
        if self._unsettled is not None:
            self._log.point("local_skipped", step=step, why=f"step {self._unsettled.step} is still being saved")
            return
        self._store.set(f"local/go/{step}", json.dumps(self._whole[-self._keep_last :]))

    def _settle(self) -> None:
        """Rank 0: see whether all ranks are done with the last save."""
        save = self._unsettled
        if save is None or self._save is not None or self._count("done", save) < self._seat.world_size:
            return
        self._unsettled = None
        if self._count("made", save) == self._seat.world_size:
            self._whole.append(save.folder)
            self._log.point("local_commit", step=save.step)
            logger.info("local save of step %d is complete on all nodes", save.step)

    def _count(self, what: str, save: Save, more: int = 0) -> int:
        return self._store.add(f"local/{what}/{save.serial}", more)

    # --- the save in flight ---

    def _begin(self, step: int, keep: tuple[str, ...]) -> None:
        assert self._save is None, "rank 0 lets nobody begin while one is busy"
        self._serial += 1
        save = Save(step, self._seat.attempt, self._serial)
        if self._seat.rank == 0:
            self._unsettled = save
        self._save = _InFlight(save, keep, time.monotonic())
        self._ask()
        try:
            with self._log.span("stage", step=step, bytes=self._stage.bytes, tier="local"):
                self._equip()
                self._stage.copy()
        except StagingFailed as error:
            self._failed(error)
        self.poll()

    def _equip(self) -> None:
        """Give the writer the segments, once they are there."""
        if not self._equipment.segments:
            self._equipment = replace(
                self._equipment, segments=tuple(Handle.of(segment) for segment in self._stage.segments())
            )
            self._writer.prepare(equip_local, self._equipment)

    def _advance(self) -> None:
        flight = self._save
        if flight is None or not self._stage.done():
            return
        if flight.ticket is None:
            flight.ticket = self._writer.submit(save_local, flight.save, flight.keep, self._neighbours_address())
        result = self._writer.result(flight.ticket, self._limit_s)
        if result is None:
            return
        self._save = None
        self._log.lasted("write", flight.since, step=flight.save.step, bytes=result["bytes"], tier="local")
        if self._neighbour is not None and not result["copied"]:
            why = result["copy_error"] or f"rank {self._neighbour} has not said where it listens"
            logger.warning("the copy of step %d on rank %d's node failed: %s", flight.save.step, self._neighbour, why)
            self._log.point("local_copy_failed", step=flight.save.step, error=why)
            self._address = None  # it may have moved with its writer
        self._count("made", flight.save, 1)
        self._count("done", flight.save, 1)

    def _failed(self, error: Exception) -> None:
        """A failed local save costs nothing but itself."""
        flight, self._save, self._asked = self._save, None, None
        self._listens = self._neighbour is None
        if flight is None:
            logger.warning("the local tier's writer failed: %s", error)
            return
        logger.warning("local save of step %d failed: %s", flight.save.step, error)
        self._log.point("local_save_failed", step=flight.save.step, error=str(error))
        self._count("done", flight.save, 1)

    # --- who listens where ---

    def _ask(self) -> None:
        """Find out this rank's port, unless it is known: in a new writer process it is another one.

        Only before a save, so that a writer that cannot live is not started again in every step.
        """
        if not self._listens and self._asked is None:
            self._asked = self._writer.submit(receiver_port)

    def _heard(self) -> bool:
        assert self._asked is not None
        port = self._writer.result(self._asked, self._limit_s)
        if port is None:
            return False
        self._asked, self._listens = None, True
        if port:
            self._store.set(f"local/address/{self._seat.rank}", f"{self._seat.host}:{port}")
        return True

    def _neighbours_address(self) -> str | None:
        if self._neighbour is not None and self._address is None:
            key = f"local/address/{self._neighbour}"
            self._address = self._store.get(key).decode() if self._store.check([key]) else None
        return self._address
