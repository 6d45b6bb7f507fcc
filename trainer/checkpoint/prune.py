"""Prune: delete checkpoints that retention no longer wants, and make room for what comes. Needs no torch.

Never the newest committed one, never what a live reader holds. A removal can be cut short anywhere: the marker goes
first, so that what is left is an uncommitted folder, which the next prune removes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import lineage
from holdfast.checkpoint_folder import look, read_marker
from holdfast.config import names
from holdfast.config.schema import Checkpoint
from holdfast.leases import held_steps
from holdfast.run_directory import RunDirectory, sync_folder, write_atomically

if TYPE_CHECKING:
    from trainer.runtime import Attempt


def superseded(committed: tuple[int, ...], keep: Checkpoint) -> list[int]:
    """Committed steps that may go: all but the last `keep_last` and the multiples of `keep_every_steps`."""
    old = sorted(committed)[: -keep.keep_last]
    every = keep.keep_every_steps
    return [step for step in old if every is None or step % every]


def prune(run: RunDirectory, keep: Checkpoint, generation: int, attempt: str, memory: dict[str, Any]) -> None:
    """Delete what retention does not keep. By rank 0's writer, after a commit; what a reader holds, after a later one.

    A step whose marker cannot be read is left alone: its files may be whole, and only a person can tell.
    memory: what earlier calls saw of readers (leases.held_steps). Raises StaleGeneration or StaleAttempt if a newer one
    owns the run, OSError if the storage refuses.
    """
    _require_current(run, generation, attempt)
    found = look(run.checkpoints)
    history = _of_history(run, found.committed)
    if not history:
        return
    for step in superseded(history, keep):
        if step in held_steps(run.checkpoints, memory):
            continue
        folder = run.checkpoints / names.step_folder(step)
        _require_current(run, generation, attempt)
        (folder / names.COMMITTED).unlink(missing_ok=True)
        sync_folder(folder)
        # A reader takes its lease first and looks for the marker then: it has either found none, or is seen here.
        if step not in held_steps(run.checkpoints, memory):
            shutil.rmtree(folder)
    for name in found.unfinished:
        step = _begun_step(name)
        if step < history[-1] and step not in held_steps(run.checkpoints, memory):
            _require_current(run, generation, attempt)
            # A save that failed on one rank may still be written by another; then the next prune finds it again.
            shutil.rmtree(run.checkpoints / name, ignore_errors=True)


def _require_current(run: RunDirectory, generation: int, attempt: str) -> None:
    run.require_generation(generation)
    lineage.require_current(run, attempt)


def _of_history(run: RunDirectory, committed: tuple[int, ...]) -> tuple[int, ...]:
    """Without steps that an aborted attempt managed to commit late. Counted as the newest, they would push out what
    restore can use; the next attempt sets them aside."""
    begun = lineage.read(run)
    markers = [read_marker(run.checkpoints / names.step_folder(step)) for step in committed]
    return tuple(m.step for m in markers if m is not None and lineage.in_history(begun, m.attempt, m.step))


def _begun_step(name: str) -> int:
    """The step of an unfinished folder, torn or partial."""
    digits = name.removeprefix(names.STEP_PREFIX)[:8]
    return int(digits) if digits.isdigit() else 0


def room_for(folder: Path, needed_bytes: int, reserve_gib: float) -> str | None:
    """Why a save of so many bytes must not begin in `folder` (which need not exist yet), or None. Raises OSError."""
    while not folder.exists():
        folder = folder.parent
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free - needed_bytes >= reserve_gib * 2**30:
        return None
    return (
        f"{folder}: {free / 1e9:.2f} GB are free, a checkpoint takes {needed_bytes / 1e9:.2f} GB, and "
        f"checkpoint.reserve_gib={reserve_gib:g} ({reserve_gib * 2**30 / 1e9:.2f} GB) must remain. Delete what is not "
        "needed, lower checkpoint.keep_last, or enlarge the file system."
    )


def set_newer_aside(run: RunDirectory, step: int, attempt: Attempt) -> list[str]:
    """Move committed steps beyond `step`, from which training goes on, out of the way, and those whose marker cannot be
    read. Rank 0 only. Returns the names.

    They are damaged, or were passed over on request. Left in place they would count as the newest for retention, which
    would then delete what is committed from now on, and for the next restart. Nothing is deleted: ASIDE keeps them.
    """
    _require_current(run, attempt.generation, str(attempt))
    moved = []
    found = look(run.checkpoints)
    newer_ones = sorted(other for other in (*found.committed, *found.damaged) if other > step)
    _point_away(run.checkpoints / names.LATEST, newer_ones, step)
    for newer in newer_ones:
        folder = run.checkpoints / names.step_folder(newer)
        target = run.path / names.ASIDE / str(attempt)
        target.mkdir(parents=True, exist_ok=True)
        folder.rename(target / folder.name)
        moved.append(str(target / folder.name))
    return moved


def _point_away(pointer: Path, leaving: list[int], step: int) -> None:
    """LATEST names no step that leaves, at no moment: it names `step`, or nothing where training begins anew."""
    if not pointer.exists() or pointer.read_text() not in map(names.step_folder, leaving):
        return
    if step:
        write_atomically(pointer, names.step_folder(step))
    else:
        pointer.unlink()


def remove_partials(run: RunDirectory, attempt: Attempt) -> list[str]:
    """Delete what earlier attempts left half-written. Rank 0 only, at the start of an attempt. Returns the names."""
    _require_current(run, attempt.generation, str(attempt))
    removed = []
    for folder in _partials(run.checkpoints):
        if f".{attempt}-s" not in folder.name:
            # Its dying writer may still add a file; the next attempt tries again.
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def _partials(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{names.STEP_PREFIX}*{names.PARTIAL_SUFFIX}")) if folder.is_dir() else []
