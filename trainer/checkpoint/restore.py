"""Restore: all ranks agree on the newest committed checkpoint that is whole, and load it straight into their shards."""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from holdfast.config import names
from holdfast.run_directory import read_json
from trainer.checkpoint.plan import nested

logger = logging.getLogger(__name__)

CHUNK = 1 << 24
"""Bytes read at a time when a checksum is computed."""


class NoCheckpoint(Exception):
    """No checkpoint can be used although one was asked for, or although some were committed. A restart cannot help."""


@dataclass(frozen=True)
class Found:
    """What one rank sees in the checkpoint folder."""

    committed: tuple[int, ...]
    unfinished: tuple[str, ...]


def look(folder: Path) -> Found:
    """Committed steps, ascending, and names of folders that hold an unfinished save."""
    committed, unfinished = [], []
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            if not entry.is_dir() or not entry.name.startswith(names.STEP_PREFIX):
                continue
            step = names.step_of(entry.name)
            if step is not None and read_json(entry / names.COMMITTED) is not None:
                committed.append(step)
            else:
                unfinished.append(entry.name)
    return Found(tuple(committed), tuple(unfinished))


def damage(folder: Path, mine: int, of: int, checksums: bool) -> str | None:
    """What is wrong with this rank's part (every of-th file) of a committed checkpoint, or None."""
    marker = read_json(folder / names.COMMITTED)
    if marker is None:
        return f"{folder.name}: the marker is unreadable"
    for index, file in enumerate(marker["files"]):
        if index % of != mine:
            continue
        path = folder / file["name"]
        try:
            size = path.stat().st_size
            if size != file["bytes"]:
                return f"{folder.name}/{path.name}: {size} bytes, {file['bytes']} were committed"
            if checksums and _crc(path) != file["crc32"]:
                return f"{folder.name}/{path.name}: its checksum is not the committed one"
        except OSError as error:
            return f"{folder.name}/{path.name}: {error.strerror}"
    return None


def agree(folder: Path, asked: int | None, must_resume: bool, checksums: bool) -> tuple[int | None, list[str]]:
    """The step that all ranks will load, or None for a fresh start, and messages about what was passed over.
    Collective.

    Every rank sees the folder for itself; only what all see and find whole is used. Raises NoCheckpoint on all ranks
    alike.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, (look(folder), asked))
    seen, asked = [found for found, _ in gathered], gathered[0][1]
    everywhere = sorted(set.intersection(*(set(found.committed) for found in seen)), reverse=True)
    somewhere = set.union(*(set(found.committed) for found in seen))
    messages = [f"{name}: not committed" for name in sorted(set.union(*(set(found.unfinished) for found in seen)))]
    messages += [f"{names.step_folder(step)}: not every rank sees it" for step in sorted(somewhere - set(everywhere))]
    candidates = everywhere if asked is None else [step for step in everywhere if step == asked]
    if asked is not None and not candidates:
        raise NoCheckpoint(f"resume.step = {asked}: no such committed step. There are: {_listed(everywhere)}.")
    for step in candidates:
        problems: list[Any] = [None] * world
        dist.all_gather_object(problems, damage(folder / names.step_folder(step), rank, world, checksums))
        found = [problem for problem in problems if problem]
        if not found:
            passed = [message for message in messages if _newer(message, step)]
            return step, passed
        messages += found
    if somewhere:
        raise NoCheckpoint(
            f"{folder}: {len(somewhere)} committed checkpoint(s), none of which can be used: {'; '.join(messages)}. "
            "Training will not start again at step 0 by itself; restore the files or use another run directory."
        )
    if must_resume:
        raise NoCheckpoint(
            f"resume.must_resume: {folder} holds no committed checkpoint ({'; '.join(messages) or 'it is empty'})."
        )
    return None, messages


def load(folder: Path, live: dict[str, torch.Tensor]) -> int:
    """Read a committed checkpoint into the live tensors, in place. Returns the bytes of this rank's tensors.
    Collective.
    """
    dcp.load(nested(live), storage_reader=dcp.FileSystemReader(folder))
    return sum(tensor.nbytes for tensor in live.values())


def _newer(message: str, step: int) -> bool:
    """Only what lies beyond the loaded step is worth a word; older leftovers are pruned in silence."""
    digits = message.removeprefix(names.STEP_PREFIX)[:8]
    return digits.isdigit() and int(digits) > step


def _listed(steps: list[int]) -> str:
    return ", ".join(str(step) for step in sorted(steps)) or "none"


def _crc(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value
