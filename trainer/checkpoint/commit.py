"""Commit: runs in rank 0's writer process. Waits for the parts of all ranks and makes them a checkpoint by one rename.

It is asked for together with the write of rank 0's own part and needs nobody after that: what all ranks have written is
committed, whatever the trainers are doing.

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
import time
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast import lineage
from holdfast.checkpoint_folder import DCP_METADATA, STATE, FileRecord, Marker, read_marker
from holdfast.config import names
from holdfast.run_directory import RunDirectory, StaleGeneration, sync_folder, write_atomically
from trainer.checkpoint.acknowledgements import NotAcknowledged, await_all, file_of
from trainer.checkpoint.outcomes import called_off
from trainer.checkpoint.persist import Equipment, equipment, has_written
from trainer.checkpoint.plan import results_from_json, write_metadata
from trainer.checkpoint.prune import prune
from trainer.checkpoint.writer import WriterFailed

logger = logging.getLogger(__name__)

_leases: dict[str, Any] = {}
"""In the writer process: what prune remembers of readers from one commit to the next."""


def partial_folder(run: RunDirectory, step: int, attempt: str, serial: int) -> Path:
    """Where `attempt` writes its `serial`-th save, of `step`. Nothing else ever writes there, so that a stale or slow
    writer cannot tear a newer save, and a late acknowledgement cannot be taken for that of a second try."""
    return run.checkpoints / f"{names.step_folder(step)}.{attempt}-s{serial}{names.PARTIAL_SUFFIX}"


def publish(folder: str, serial: int, description: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Commit the step in `folder` once every rank has acknowledged its part, for which it waits.

    deadline: of the wait, in monotonic seconds. Returns {bytes, acknowledged_at, committed_at}, the latter two as
    monotonic seconds. Raises NotAcknowledged or CalledOff if a part does not come, StaleGeneration or StaleAttempt if a
    newer one owns the run, OSError if the storage refuses. Nothing is committed then, except by an OSError
    behind the marker's rename.
    """
    e, partial = equipment(), Path(folder)
    run = RunDirectory(e.run_dir)
    acknowledged = _await_all(run, e, partial, deadline)
    acknowledged_at = time.monotonic()
    _require_ours(run, e)
    assert isinstance(e.plan.metadata, Metadata)
    write_metadata(e.plan.metadata, partial, [results_from_json(a["results"]) for a in acknowledged])
    write_atomically(partial / STATE, json.dumps(description, indent=1))
    files = [FileRecord(f["name"], f["bytes"], tuple(f["xxh3"])) for a in acknowledged for f in a["files"]]
    files += [FileRecord.of_content(name, (partial / name).read_bytes()) for name in (DCP_METADATA, STATE)]
    for rank in range(e.world_size):
        file_of(partial, rank).unlink()
    marker = Marker(description["step"], e.attempt, e.generation, e.world_size, tuple(files))
    _publish(run, e, partial, f"{names.PENDING_PREFIX}{e.attempt}-s{serial}", marker)
    return {"bytes": marker.bytes, "acknowledged_at": acknowledged_at, "committed_at": time.monotonic()}


def _await_all(run: RunDirectory, e: Equipment, partial: Path, deadline: float) -> list[dict[str, Any]]:
    if not has_written(str(partial)):
        # Its acknowledgement may be there all the same: the write may have failed right behind it.
        raise NotAcknowledged(f"{partial.name}: rank {e.rank} did not write its own part")
    try:
        return await_all(partial, e.world_size, deadline, called_off)
    except FileNotFoundError:
        _require_ours(run, e)  # a newer attempt deletes what it finds unfinished
        raise


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
        # Torn. Moved before it is deleted: a rename that a killed writer had begun lands in it, and not in ours.
        final.rename(_torn(partial))
    partial.rename(final)
    sync_folder(run.checkpoints)
    (final / pending).rename(final / names.COMMITTED)
    sync_folder(final)
    shutil.rmtree(_torn(partial), ignore_errors=True)
    try:
        write_atomically(run.checkpoints / names.LATEST, final.name)
    except OSError as error:
        logger.warning("step %d is committed; the pointer for people was not written: %s", marker.step, error)


def _torn(partial: Path) -> Path:
    """Where a torn folder of the same step goes. By its name it is an unfinished save, and those are swept."""
    return partial.with_name(partial.name.removesuffix(names.PARTIAL_SUFFIX) + "-torn" + names.PARTIAL_SUFFIX)


def _set_aside(run: RunDirectory, final: Path, by: str) -> None:
    aside = run.path / names.ASIDE / by
    aside.mkdir(parents=True, exist_ok=True)
    final.rename(aside / final.name)


def _require_ours(run: RunDirectory, e: Equipment) -> None:
    run.require_generation(e.generation)
    lineage.require_current(run, e.attempt)


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


def raise_if_stale(error: Exception) -> None:
    """In the trainer: raise StaleGeneration or StaleAttempt if that is why the writer refused. Then this process has
    nothing left to do either."""
    for stale in (StaleGeneration, lineage.StaleAttempt):
        if isinstance(error, WriterFailed) and error.kind == stale.__name__:
            raise stale(str(error))
