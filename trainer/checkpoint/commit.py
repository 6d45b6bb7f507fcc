"""Commit: rank 0 turns a fully acknowledged folder into a checkpoint by one rename of the marker.

Order, each durable before the next: all ranks' files and acknowledgements; `.metadata` and `state.json`; the folder
gets its final name; the marker; the pointer LATEST. A reader trusts the marker only, so every crash in between leaves
either the old state or the new one.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.config import names
from holdfast.run_directory import RunDirectory, sync_folder, write_atomically
from trainer.checkpoint.persist import read_acknowledgement
from trainer.checkpoint.plan import with_results
from trainer.runtime import Attempt


def partial_folder(run: RunDirectory, step: int, attempt: Attempt, serial: int) -> Path:
    """Where `attempt` writes its `serial`-th save, of `step`. Nothing else ever writes there, so that a stale or slow
    writer cannot tear a newer save, and a late acknowledgement cannot be taken for that of a second try."""
    return run.checkpoints / f"{names.step_folder(step)}.{attempt}-s{serial}{names.PARTIAL_SUFFIX}"


def try_commit(
    run: RunDirectory, partial: Path, attempt: Attempt, world_size: int, metadata: Metadata, description: dict[str, Any]
) -> bool:
    """Commit the step in `partial` if every rank has acknowledged it. Rank 0 only.

    False while a rank has not finished. Raises StaleGeneration if a newer generation owns the run, OSError if the
    storage refuses.
    """
    step = description["step"]
    acknowledged = []
    for rank in range(world_size):
        found = read_acknowledgement(partial, rank)
        if found is None:
            return False
        acknowledged.append(found)
    run.require_generation(attempt.generation)
    with_results(metadata, partial, [results for _, results in acknowledged])
    text = json.dumps(description, indent=1)
    write_atomically(partial / "state.json", text)
    files = [file for rank_files, _ in acknowledged for file in rank_files]
    files += [_described(partial / name) for name in (".metadata", "state.json")]
    for rank in range(world_size):
        (partial / f"rank-{rank}.json").unlink()
    _publish(
        run, partial, step, {"step": step, "attempt": str(attempt), "generation": attempt.generation, "files": files}
    )
    return True


def _publish(run: RunDirectory, partial: Path, step: int, marker: dict[str, Any]) -> None:
    final = run.checkpoints / names.step_folder(step)
    if final.exists():
        # A torn folder of an earlier attempt, or the same step committed before a rollback past it: replaced.
        (final / names.COMMITTED).unlink(missing_ok=True)
        shutil.rmtree(final)
    run.require_generation(marker["generation"])
    partial.rename(final)
    sync_folder(run.checkpoints)
    write_atomically(final / names.COMMITTED, json.dumps(marker))
    write_atomically(run.checkpoints / names.LATEST, final.name)


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"name": path.name, "bytes": len(content), "crc32": zlib.crc32(content)}
