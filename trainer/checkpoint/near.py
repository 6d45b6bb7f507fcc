"""The local tier of one attempt, as `Checkpoints` and `Resume` see it: what is on the nodes first, then saves to them.

It has a stage and a writer process of its own, so that a save to the shared storage, which may take minutes, keeps no
local one from being made.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import _get_default_store

from holdfast.config import names
from trainer.checkpoint import state
from trainer.checkpoint.local.part import Save, layout_hash
from trainer.checkpoint.local.pipeline import LocalPipeline, Seat
from trainer.checkpoint.local.restore import LocalTier, folder_of
from trainer.checkpoint.stage import Layout, Stage
from trainer.checkpoint.writer import Writer
from trainer.runtime import Attempt

if TYPE_CHECKING:
    import torch

    from trainer.train import Survivors

logger = logging.getLogger(__name__)


@dataclass
class Hands:
    """What of the local tier survives from one attempt to the next in the same process."""

    writer: Writer
    stage: Stage = field(default_factory=Stage)


class Near:
    """One per attempt, where checkpoint.local.interval_steps is set. `prepare`, `restore`, `start`; then in every step
    `before_update` and `after_step`."""

    def __init__(self, survivors: Survivors, attempt: Attempt, hands: Hands, fingerprint: str) -> None:
        self._config = survivors.config
        self._identity = survivors.identity
        self._log = survivors.log
        self._attempt = attempt
        self._fingerprint = fingerprint
        self._stage, self._writer = hands.stage, hands.writer
        self._folder = folder_of(survivors.config)
        self._tier = LocalTier(
            self._folder,
            survivors.run,
            survivors.identity.rank,
            survivors.identity.world_size,
            survivors.config.checkpoint.read_threads,
        )
        self._restored: Save | None = None
        self._pipeline: LocalPipeline | None = None

    def prepare(self, live: dict[str, torch.Tensor]) -> None:
        """Bind the stage to the live tensors."""
        if self._writer.busy:
            self._writer.abort()  # it is still writing for an attempt that is over
        self._writer.start()
        self._stage.bind(live)
        self._hash = _experiment_hash(
            self._stage.layout, state.compared(self._config.model_dump(mode="json"), self._fingerprint)
        )

    def restore(self, above: int) -> int | None:
        """Load the newest local save of a step beyond `above` that every rank can get back; None without one.

        Collective. What was passed over is in `passed_over` afterwards.
        """
        while (candidate := self._tier.find(self._hash, above)) is not None:
            start = time.monotonic()
            size = self._tier.load(candidate, self._stage.segments())
            if size is None:
                continue
            self._stage.put_back()
            step = candidate.save.step
            self._log.lasted("restore", start, step=step, bytes=size, tier="local")
            logger.info("restored step %d from the nodes in %.2f s", step, time.monotonic() - start)
            self._restored = candidate.save
            return step
        return None

    @property
    def passed_over(self) -> list[str]:
        """Why local saves were not restored, the same on all ranks."""
        return self._tier.passed_over

    def start(self, step: int) -> None:
        """Training goes on from `step`: what lies beyond it is of a time line that was left."""
        self._tier.leave_newer_behind(step)
        seat = Seat(
            str(self._attempt),
            self._identity.rank,
            self._identity.world_size,
            os.environ.get(names.ENV_POD_IP, "127.0.0.1"),
            os.environ.get(names.ENV_TOKEN, ""),
        )
        self._pipeline = LocalPipeline(
            self._config, seat, self._folder, self._hash, self._stage, self._writer, _get_default_store(), self._log
        )
        self._pipeline.start(step, self._restored)

    def between(self) -> None:
        """Launch a copy that is due."""
        self._stage.launch()

    def before_update(self) -> None:
        """The next optimizer update waits for the staging copy."""
        self._stage.wait()

    def after_step(self, step: int) -> None:
        """Look after the local save in flight; begin one that is due."""
        assert self._pipeline is not None, "start() comes first"
        self._pipeline.after_step(step)


def _experiment_hash(layout: Layout, experiment: dict[str, Any]) -> str:
    """Where tensors lie in the segments, and what the run must have in common with the save: there is no state.json in
    this tier, and another experiment finds nothing here."""
    slots = {name: layout.slot(name) for name in layout.names}
    places = {name: [slot.segment, slot.offset, list(slot.shape), str(slot.dtype)] for name, slot in slots.items()}
    return layout_hash({"sizes": list(layout.sizes), "places": places, "experiment": experiment})
