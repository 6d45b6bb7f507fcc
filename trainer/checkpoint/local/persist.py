"""What the writer process does for the local tier: write this rank's part, send it to the neighbour, receive others'.

`equip_local` brings what all saves of an attempt have in common, once, and starts the receiver; a save is then a name.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.local.exchange import ExchangeFailed, Limits, Receiver, send_part
from trainer.checkpoint.local.files import lacks_room, prune_parts, write_part
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part, Save
from trainer.checkpoint.segments import Handle

logger = logging.getLogger(__name__)

DELAY_VARIABLE = "HOLDFAST_TEST_LOCAL_DELAY_S"
"""Tests slow local saves down by so many seconds each, so that faults can be placed in the middle of one."""


@dataclass(frozen=True)
class LocalEquipment:
    """What all local saves of an attempt have in common. host: where this rank's receiver listens; None for none."""

    folder: Path
    rank: int
    world_size: int
    layout_hash: str
    host: str | None
    token: str
    limits: Limits
    segments: tuple[Handle, ...] = ()

    @property
    def listening(self) -> tuple[object, ...]:
        """What the receiver depends on."""
        return (self.folder, self.host, self.token, self.limits)


_equipment: list[LocalEquipment] = []
_receivers: list[Receiver] = []
"""In the writer process: at most one of each."""
_segments: list[torch.Tensor] = []
"""In the writer process: the staged bytes, mapped once."""


def equip_local(equipment: LocalEquipment) -> None:
    """Take what all local saves need; keep the receiver that there is, if it is the one that is wanted."""
    if _receivers and (not _equipment or _equipment[0].listening != equipment.listening):
        _receivers.pop().close()
    _equipment[:] = [equipment]
    _segments[:] = [handle.open() for handle in equipment.segments]
    if equipment.host is None or _receivers:
        return
    try:
        equipment.folder.mkdir(parents=True, exist_ok=True)
        _receivers.append(Receiver(equipment.folder, equipment.host, equipment.token, equipment.limits))
    except OSError as error:
        # Own saves do not need it; the neighbour's copies fail, and its events say so.
        logger.error("rank %d cannot receive copies at %s: %s", equipment.rank, equipment.host, error)


def receiver_port() -> int:
    """Where this rank's receiver listens; 0 if it has none."""
    return _receivers[0].port if _receivers else 0


def save_local(save: Save, keep: tuple[str, ...], neighbour: str | None) -> dict[str, Any]:
    """Make room, write this rank's part, copy it to `neighbour` (host:port).

    keep: folder names of the newest saves that are complete on all nodes; all others are removed first, so that a node
    never holds more than these and the one being written.

    Returns {bytes, seconds, copied, copy_error}; a copy that fails is no failed save. Raises OSError where the part
    cannot be written.
    """
    start = time.monotonic()
    time.sleep(float(os.environ.get(DELAY_VARIABLE, "0")))
    e = _equipment[0]
    source = FlatBytes(_segments)
    draft = Part(save, e.rank, e.world_size, e.layout_hash, source.bytes)
    e.folder.mkdir(parents=True, exist_ok=True)
    prune_parts(e.folder, keep, save)
    full = lacks_room(e.folder, source.bytes)
    if full:
        raise OSError(full)
    part = write_part(e.folder, draft, source)
    error = None
    if neighbour is not None:
        try:
            send_part(neighbour, e.token, part, source, e.limits)
        except ExchangeFailed as failure:
            error = str(failure)
    return {
        "bytes": part.bytes,
        "seconds": time.monotonic() - start,
        "copied": neighbour is not None and error is None,
        "copy_error": error,
    }
