"""Commit: runs in rank 0's writer process. Turns a fully acknowledged folder into a checkpoint by one rename.

Order, each durable before the next: all ranks' files and acknowledgements; `.metadata`, `state.json` and the pending
marker; the folder gets its final name; the marker gets its final name, which is the commit; the pointer LATEST. A
reader trusts the marker only, so every crash in between leaves either the old state or the new one. The pending
marker's name says whose it is: a writer that comes back after its attempt was aborted (stuck in the file system, say)
finds nothing to rename in what another attempt has put in its place.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast import lineage
from holdfast.checkpoint_folder import DCP_METADATA, STATE, FileRecord, Marker, read_marker
from holdfast.config import names
from holdfast.run_directory import RunDirectory, sync_folder, write_atomically
from trainer.checkpoint.persist import Equipment, equipment, read_acknowledgement
from trainer.checkpoint.plan import results_from_json, write_metadata
from trainer.checkpoint.prune import prune

logger = logging.getLogger(__name__)

_leases: dict[str, Any] = {}
"""In the writer process: what prune remembers of readers from one commit to the next."""


def partial_folder(run: RunDirectory, step: int, attempt: str, serial: int) -> Path:
    """Where `attempt` writes its `serial`-th save, of `step`. Nothing else ever writes there, so that a stale or slow
    writer cannot tear a newer save, and a late acknowledgement cannot be taken for that of a second try."""
    return run.checkpoints / f"{names.step_folder(step)}.{attempt}-s{serial}{names.PARTIAL_SUFFIX}"


def publish(folder: str, serial: int, description: dict[str, Any]) -> dict[str, Any]:
    """Commit the step in `folder`, which every rank has acknowledged. Returns {bytes}.

    Raises StaleGeneration or StaleAttempt if a newer one owns the run, OSError if the storage refuses.
    """
    e, partial = equipment(), Path(folder)
    run = RunDirectory(e.run_dir)
    _require_ours(run, e)
    acknowledged = [_acknowledgement(partial, rank) for rank in range(e.world_size)]
    assert isinstance(e.plan.metadata, Metadata)
    write_metadata(e.plan.metadata, partial, [results_from_json(a["results"]) for a in acknowledged])
    write_atomically(partial / STATE, json.dumps(description, indent=1))
    files = [FileRecord(f["name"], f["bytes"], tuple(f["xxh3"])) for a in acknowledged for f in a["files"]]
    files += [FileRecord.of_content(name, (partial / name).read_bytes()) for name in (DCP_METADATA, STATE)]
    for rank in range(e.world_size):
        (partial / f"rank-{rank}.json").unlink()
    marker = Marker(description["step"], e.attempt, e.generation, e.world_size, tuple(files))
    _publish(run, e, partial, f"{names.PENDING_PREFIX}{e.attempt}-s{serial}", marker)
    return {"bytes": marker.bytes}


def _publish(run: RunDirectory, e: Equipment, partial: Path, pending: str, marker: Marker) -> None:
    write_atomically(partial / pending, marker.text())
    final = run.checkpoints / names.step_folder(marker.step)
    there = read_marker(final)
    _require_ours(run, e)  # after the look: a writer that hung in it for long is refused
    if there is not None and lineage.in_history(lineage.read(run), there.attempt, there.step):
        # Committed already, on this very time line: a retry of a save that only seemed to have failed.
        shutil.rmtree(partial, ignore_errors=True)
        return
    if (final / names.COMMITTED).exists():
        # Committed on a time line that was left, or its marker cannot be read: never deleted.
        _set_aside(run, final, partial.name)
    elif final.exists():
        shutil.rmtree(final)  # torn
    partial.rename(final)
    sync_folder(run.checkpoints)
    (final / pending).rename(final / names.COMMITTED)
    sync_folder(final)
    try:
        write_atomically(run.checkpoints / names.LATEST, final.name)
    except OSError as error:
        logger.warning("step %d is committed; the pointer for people was not written: %s", marker.step, error)


def _set_aside(run: RunDirectory, final: Path, by: str) -> None:
    aside = run.path / names.ASIDE / by
    aside.mkdir(parents=True, exist_ok=True)
    final.rename(aside / final.name)


def _require_ours(run: RunDirectory, e: Equipment) -> None:
    run.require_generation(e.generation)
    lineage.require_current(run, e.attempt)


def _acknowledgement(partial: Path, rank: int) -> dict[str, Any]:
    found = read_acknowledgement(partial, rank)
    if found is None:
        raise OSError(f"{partial}: rank {rank} has acknowledged its part, and rank-{rank}.json is not there")
    return found


def retain() -> dict[str, Any]:
    """Apply retention after a commit. Returns {error}: what cannot be deleted now is tried again after the next."""
    e = equipment()
    try:
        prune(RunDirectory(e.run_dir), e.keep, e.generation, e.attempt, _leases)
    except OSError as error:
        return {"error": str(error)}
    return {"error": None}


def discard(folder: str) -> dict[str, Any]:
    """Delete what a failed save left."""
    shutil.rmtree(folder, ignore_errors=True)
    return {}
