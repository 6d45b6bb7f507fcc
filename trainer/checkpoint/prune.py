"""Prune: delete checkpoints that retention no longer wants. Resumable, and never the newest committed ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.config import names
from holdfast.config.schema import Checkpoint
from holdfast.run_directory import RunDirectory
from trainer.checkpoint.restore import look
from trainer.runtime import Attempt


def superseded(committed: tuple[int, ...], keep: Checkpoint) -> list[int]:
    """Committed steps that may go: all but the last `keep_last` and the multiples of `keep_every_steps`."""
    old = sorted(committed)[: -keep.keep_last]
    every = keep.keep_every_steps
    return [step for step in old if every is None or step % every]


def prune(run: RunDirectory, keep: Checkpoint, attempt: Attempt) -> None:
    """Delete what retention does not keep. Rank 0 only, after a commit. Raises StaleGeneration, OSError.

    The marker goes first: a removal that is cut short leaves an uncommitted folder, which the next one removes.
    """
    run.require_generation(attempt.generation)
    found = look(run.checkpoints)
    if not found.committed:
        return
    for step in superseded(found.committed, keep):
        folder = run.checkpoints / names.step_folder(step)
        (folder / names.COMMITTED).unlink(missing_ok=True)
        shutil.rmtree(folder)
    newest = max(found.committed)
    for name in found.unfinished:
        if _begun_step(name) < newest:
            # A save that failed on one rank may still be written by another; then the next prune finds it again.
            shutil.rmtree(run.checkpoints / name, ignore_errors=True)


def _begun_step(name: str) -> int:
    """The step of an unfinished folder, torn or partial."""
    digits = name.removeprefix(names.STEP_PREFIX)[:8]
    return int(digits) if digits.isdigit() else 0


def set_newer_aside(run: RunDirectory, step: int, attempt: Attempt) -> list[str]:
    """Move committed steps beyond `step`, from which training goes on, out of the way. Rank 0 only. Returns the names.

    They are damaged, or were passed over on request. Left in place they would count as the newest for retention, which
    would then delete what is committed from now on, and for the next restart. Nothing is deleted: ASIDE keeps them.
    """
    run.require_generation(attempt.generation)
    moved = []
    for newer in [found for found in look(run.checkpoints).committed if found > step]:
        folder = run.checkpoints / names.step_folder(newer)
        target = run.path / names.ASIDE / str(attempt)
        target.mkdir(parents=True, exist_ok=True)
        folder.rename(target / folder.name)
        moved.append(str(target / folder.name))
    return moved


def remove_partials(run: RunDirectory, attempt: Attempt) -> list[str]:
    """Delete what earlier attempts left half-written. Rank 0 only, at the start of an attempt. Returns the names."""
    run.require_generation(attempt.generation)
    removed = []
    for folder in _partials(run.checkpoints):
        if f".{attempt}-s" not in folder.name:
            shutil.rmtree(
                folder, ignore_errors=True
            )  # its dying writer may still add a file; the next attempt tries again
            removed.append(folder.name)
    return removed


def _partials(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{names.STEP_PREFIX}*{names.PARTIAL_SUFFIX}")) if folder.is_dir() else []
