"""Persist: runs in the writer process. Write this rank's files and then its acknowledgement, all durable.

The files are torch DCP's, by NVRx's FileSystemWriterAsync. `equip` brings what all saves have in common, once; after
that a save is one folder name.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync

from holdfast.checkpoint_folder import BlockHashes
from holdfast.config.schema import Checkpoint
from trainer.checkpoint.acknowledgements import acknowledge
from trainer.checkpoint.plan import ShardPlan, results_to_json
from trainer.checkpoint.prune import room_for
from trainer.checkpoint.segments import Handle
from trainer.checkpoint.stage import Layout

ASIDE_BYTES = 1 << 20
"""From this size on, to hash in another thread is worth it."""
DELAY_VARIABLE = "HOLDFAST_TEST_WRITE_DELAY_S"
"""Tests slow the writer down by so many seconds per save, so that faults can be placed in the middle of a write."""


@dataclass(frozen=True)
class Equipment:
    """What all saves of an attempt have in common."""

    rank: int
    world_size: int
    run_dir: Path
    attempt: str
    generation: int
    keep: Checkpoint
    plan: ShardPlan
    layout: Layout
    segments: tuple[Handle, ...]


_equipment: list[Equipment] = []
_tensors: list[torch.Tensor] = []
"""In the writer process, in the order of the plan's items: the staged tensors, whose values change with every save."""
_written: list[str] = []
"""In the writer process: the folder of the save whose part it has written last."""


def equip(equipment: Equipment) -> None:
    """Take what all saves need."""
    # Our checksums cover the same bytes. Measured: torch's CRC-32 costs 0.22 s per GB, the write to memory itself 0.32.
    torch.serialization.set_crc32_options(False)
    _equipment[:] = [equipment]
    segments = [handle.open() for handle in equipment.segments]
    slots = (equipment.layout.slot(item.index.fqn) for item in equipment.plan.items)
    _tensors[:] = [slot.of(segments) for slot in slots]


def equipment() -> Equipment:
    """What `equip` brought."""
    if not _equipment:
        raise RuntimeError("the writer was not equipped")
    return _equipment[0]


def staged() -> list[torch.Tensor]:
    """In the writer process: the staged tensors, which are the rank's own memory."""
    return _tensors


def has_written(folder: str) -> bool:
    """Whether this process has written its part of the save in `folder`, and nothing since."""
    return _written == [folder]


def write_shard(folder: str) -> dict[str, Any]:
    """Write the files of this rank into `folder`, fsynced, then `rank-<n>.json`, the acknowledgement.

    Returns {bytes, seconds}. Raises OSError where the storage refuses or has no room.
    """
    start = time.monotonic()
    _written.clear()
    time.sleep(float(os.environ.get(DELAY_VARIABLE, "0")))
    e, target = equipment(), Path(folder)
    needed = e.layout.bytes * (e.world_size if e.rank == 0 else 1)  # the others begin while some have written
    lacking = room_for(target.parent, needed, e.keep.reserve_gib)
    if lacking:
        raise OSError(lacking)
    target.mkdir(parents=True, exist_ok=True)
    files, results = _write_files(e, folder)
    acknowledge(target, e.rank, files, results_to_json(results))
    _written[:] = [folder]
    return {"bytes": sum(file["bytes"] for file in files), "seconds": time.monotonic() - start}


class _Hashed(FileIO):
    """A file that knows the checksums of its blocks. DCP writes in order; a seek would show in the size."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "wb")
        self.hashes = BlockHashes()
        self.error: OSError | None = None
        """Why a write failed. torch's own message, "unexpected pos", does not say it."""
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")

    def write(self, data: Any) -> int:
        """Write, and hash meanwhile in another thread: the storage does not wait for checksums."""
        view = memoryview(data).cast("B")
        hashed = self._hasher.submit(self.hashes.update, view) if len(view) >= ASIDE_BYTES else None
        try:
            rest = view
            while len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = self.error or error
            raise
        finally:
            if hashed is not None:
                hashed.result()
        if hashed is None:
            self.hashes.update(view)
        return len(view)

    def close(self) -> None:
        """Close the file and end the other thread."""
        self._hasher.shutdown()
        super().close()


def _write_files(e: Equipment, folder: str) -> tuple[list[dict[str, Any]], list[Any]]:
    streams: dict[str, _Hashed] = {}

    def open_hashed(path: str, _mode: str) -> _Hashed:
        streams[path] = _Hashed(path)
        return streams[path]

    data = (None, (None, None, (e.plan.items, _tensors), None, e.keep.writer_threads, e.plan.storage_plan))
    buckets = FileSystemWriterAsync.preload_tensors((folder, data), False)
    # Not by NVRx's write_preloaded_data_multithread: it writes one bucket alone before it starts threads for the rest.
    write = partial(FileSystemWriterAsync._write_bucket_to_storage, [e.plan.transforms], open_hashed)
    with ThreadPoolExecutor(max(1, len(buckets)), thread_name_prefix="write") as pool:
        written = [pool.submit(write, bucket, True, False) for bucket in buckets]
    failed = next((part.exception() for part in written if part.exception()), None)
    if failed is not None:
        raise next((stream.error for stream in streams.values() if stream.error), failed)
    files = []
    for path, stream in streams.items():
        size = os.path.getsize(path)
        if size != stream.hashes.bytes:
            raise OSError(f"{path}: {stream.hashes.bytes} bytes were written, the file has {size}")
        files.append({"name": os.path.basename(path), "bytes": size, "xxh3": stream.hashes.digests()})
    return files, [result for part in written for result in part.result()]
