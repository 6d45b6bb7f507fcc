"""Restore: what all ranks do together to find the newest committed checkpoint that is whole, and to load it.

Each function here is collective: call it on all ranks. Each gives the same answer, or raises alike, on all of them.
Checksums are verified while loading, so that nothing is read twice; what a checkpoint is worth is known afterwards.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.checkpoint_folder import STATE, Found, damage, look, read_marker
from holdfast.config import names
from holdfast.config.schema import Checkpoint
from holdfast.lineage import Begun, in_history
from trainer.checkpoint.plan import nested
from trainer.checkpoint.reader import Damaged, VerifyingReader, committed_content


class NoCheckpoint(Exception):
    """No checkpoint can be used although one was asked for, or although some were committed. A restart cannot help."""


@dataclass(frozen=True)
class Candidates:
    """steps: committed, seen by every rank, of this run's history, newest first. somewhere: how many any rank sees,
    those whose marker cannot be read included. messages: what was passed over, and why. asked: the step that was asked
    for (resume.step)."""

    steps: tuple[int, ...]
    somewhere: int
    messages: tuple[str, ...]
    asked: int | None = None


def candidates(folder: Path, asked: int | None, begun: list[Begun]) -> Candidates:
    """The steps that may be loaded. Raises NoCheckpoint if `asked` (resume.step) is not among them, OSError on all
    ranks if the folder cannot be listed on one.

    begun: the run's attempts. It counts as rank 0 knows it, like `asked`. A step whose attempt is not on the way to
    the present is never used: its commit came after the attempt was aborted, or it is another run's.
    """
    gathered: list[Any] = [None] * dist.get_world_size()
    found, problem = Found((), ()), None
    try:
        found = look(folder)
    except OSError as error:
        problem = f"rank {dist.get_rank()} cannot list the checkpoints: {error}"
    strangers = _strangers(folder, found, begun) if dist.get_rank() == 0 else {}
    dist.all_gather_object(gathered, (found, asked, strangers, problem))
    if problems := [problem for *_, problem in gathered if problem]:
        raise OSError("; ".join(problems))
    seen, (_, asked, strangers, _) = [found for found, *_ in gathered], gathered[0]
    everywhere = sorted(set.intersection(*(set(found.committed) for found in seen)), reverse=True)
    damaged = set.union(*(set(found.damaged) for found in seen))
    somewhere = set.union(*(set(found.committed) for found in seen)) | damaged
    messages = [f"{name}: not committed" for name in sorted(set.union(*(set(found.unfinished) for found in seen)))]
    messages += [f"{names.step_folder(step)}: its marker is unreadable" for step in sorted(damaged)]
    unseen = sorted(somewhere - damaged - set(everywhere))
    messages += [f"{names.step_folder(step)}: not every rank sees it" for step in unseen]
    messages += [f"{names.step_folder(step)}: {why}" for step, why in sorted(strangers.items())]
    steps = [step for step in everywhere if step not in strangers]
    if asked is not None and asked not in steps:
        listed = ", ".join(str(step) for step in sorted(steps)) or "none"
        raise NoCheckpoint(f"resume.step = {asked}: no such committed step. There are: {listed}.")
    return Candidates(tuple(steps) if asked is None else (asked,), len(somewhere), tuple(messages), asked)


def without_a_record(folder: Path) -> list[tuple[int, str]]:
    """(step, attempt) of all committed steps, by their markers alone: for a run that has no list of its attempts, since
    it is older than that, or since only its checkpoints were copied. Rank 0 only."""
    markers = (read_marker(folder / names.step_folder(step)) for step in look(folder).committed)
    return [(marker.step, marker.attempt) for marker in markers if marker is not None]


def _strangers(folder: Path, found: Found, begun: list[Begun]) -> dict[int, str]:
    """Committed steps that are not of this run's history -> why."""
    strangers = {}
    for step in found.committed:
        marker = read_marker(folder / names.step_folder(step))
        if marker is not None and not in_history(begun, marker.attempt, step):
            why = f"attempt {marker.attempt} committed it, which is not in this run's history or was aborted before"
            strangers[step] = why
    return strangers


def require_none_needed(folder: Path, found: Candidates, messages: list[str], must_resume: bool) -> None:
    """Nothing could be loaded. Raises NoCheckpoint unless a fresh start is right: nothing was ever committed. A marker
    that cannot be read was one."""
    if found.somewhere:
        raise NoCheckpoint(
            f"{folder}: {found.somewhere} committed checkpoint(s), none of which can be used: {'; '.join(messages)}. "
            "Training will not start again at step 0 by itself; restore the files or use another run directory."
        )
    if must_resume:
        raise NoCheckpoint(
            f"resume.must_resume: {folder} holds no committed checkpoint ({'; '.join(messages) or 'it is empty'})."
        )


@dataclass(frozen=True)
class Opened:
    """A committed step that looks whole: its reader, and state.json."""

    reader: VerifyingReader
    description: dict[str, Any]


def open_step(folder: Path, how: Checkpoint) -> tuple[Opened | None, list[str]]:
    """Open a step for loading, or say what is wrong with it: markers, sizes, and what describes the tensors."""
    opened, problem, marker = None, None, ""
    try:
        marker, opened = _open(folder, how)
    except Damaged as error:
        problem = str(error)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (problem, marker))
    problems = list(dict.fromkeys(problem for problem, _ in gathered if problem))
    if not problems and len({marker for _, marker in gathered}) > 1:
        problems = [f"{folder.name}: ranks see different markers"]
    return (None if problems else opened), problems


def _open(folder: Path, how: Checkpoint) -> tuple[str, Opened]:
    marker = read_marker(folder)
    if marker is None:
        raise Damaged(f"{folder.name}: its marker is unreadable")
    mine = marker.files[dist.get_rank() :: dist.get_world_size()]
    for problem in damage(folder, mine, marker.block_bytes, every=None):
        raise Damaged(problem)
    reader = VerifyingReader(folder, marker, how.verify, how.read_threads)
    reader.read_metadata()
    description = json.loads(committed_content(folder, marker, STATE))
    return hashlib.sha256(marker.text().encode()).hexdigest(), Opened(reader, description)


def load(opened: Opened, live: dict[str, torch.Tensor]) -> list[str]:
    """Read a step into the live tensors, in place, and say what damage was found; then they are half-overwritten, and
    another step must be loaded.
    """
    try:
        dcp.load(nested(live), storage_reader=opened.reader)
    except CheckpointException as error:
        return _damage_found(error)
    return []


def _damage_found(error: CheckpointException) -> list[str]:
    """Messages of the ranks that found damage. Raises what is no damage: another model, or no memory left."""
    for rank, (cause, _) in sorted(error.failures.items()):
        if not isinstance(cause, Exception):
            raise cause  # an abort from outside, which torch has taken for a failure of the load
        if not isinstance(cause, Damaged):
            raise RuntimeError(f"the checkpoint cannot be loaded: rank {rank}: {cause!r}") from error
    return list(dict.fromkeys(str(cause) for cause, _ in error.failures.values()))
