"""How fast the background write is, beside plain threads that write the same bytes to the same target: no checksums, no
format, no other process. Interleaved, fsynced, all ranks at once, as in a save."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.arms.workload import settings
from bench.checkpoint_spec import Spec
from holdfast.run_directory import sync_folder
from trainer.checkpoint import persist
from trainer.checkpoint.plan import make_plan
from trainer.checkpoint.segments import Handle
from trainer.checkpoint.stage import Stage
from trainer.checkpoint.writer import Writer

PIECE = 1 << 23
"""Bytes per write call of the plain threads; the checkpoint writer's pieces are as large."""
POLL_S = 0.005


def compare(spec: Spec) -> dict[str, Any]:
    """What the line on write bandwidth says. Collective."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = Path(spec.target) / spec.method
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    dist.barrier()
    ours = Ours(spec, rank, folder)
    ways: dict[str, Callable[[Path], float]] = {
        "ours": ours.write,
        "plain": lambda place: write_plainly(ours.segments, place, rank, spec.threads),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(spec.write_rounds + 1):
        for name in sorted(ways, reverse=bool(index % 2)):
            seconds[name].append(_all_at_once(ways[name], folder / name, rank))
    ours.close()
    rate = {name: spec.world * ours.bytes / 1e9 / statistics.median(took[1:]) for name, took in seconds.items()}
    return {
        "bytes": spec.world * ours.bytes,
        "threads_per_rank": spec.threads,
        "rounds": spec.write_rounds,
        "ours_gb_s": rate["ours"],
        "plain_gb_s": rate["plain"],
        "ratio": rate["ours"] / rate["plain"],
        "seconds": seconds,
    }


def _all_at_once(write: Callable[[Path], float], place: Path, rank: int) -> float:
    """One write by all ranks; the slowest one's seconds. What was written is deleted."""
    if rank == 0:
        place.mkdir()
    dist.barrier()
    took: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(took, write(place))
    if rank == 0:
        shutil.rmtree(place)
    dist.barrier()
    return float(max(took))


class Ours:
    """The writer process with the function that writes a shard, fed from the stage's shared memory."""

    def __init__(self, spec: Spec, rank: int, folder: Path) -> None:
        live = shard_like(spec, rank)
        stage = Stage()
        stage.bind(live)
        self.segments = stage.segments()
        self.bytes = sum(tensor.nbytes for tensor in live.values())
        for segment in self.segments:
            segment.copy_(torch.arange(segment.numel(), dtype=torch.uint8))
        self._writer = Writer(rank)
        equipment = persist.Equipment(
            rank=rank,
            world_size=spec.world,
            run_dir=folder,
            attempt="bench",
            generation=0,
            keep=settings(spec, 1).checkpoint,
            plan=make_plan(live, spec.threads),
            layout=stage.layout,
            segments=tuple(Handle.of(segment) for segment in self.segments),
        )
        self._limit_s = spec.limit_s
        self._writer.prepare(persist.equip, equipment)

    def write(self, place: Path) -> float:
        """Write the shard; the seconds that the writer process took for it."""
        ticket = self._writer.submit(persist.write_shard, str(place))
        while (done := self._writer.result(ticket, self._limit_s)) is None:
            time.sleep(POLL_S)
        assert done["bytes"] >= self.bytes
        return float(done["seconds"])

    def close(self) -> None:
        """End the process."""
        self._writer.close()


def shard_like(spec: Spec, rank: int) -> dict[str, torch.Tensor]:
    """Tensors with the sizes of one rank's part of the model and its moments, together `spec.shard_bytes`. Their memory
    is never touched, hence never there."""
    head = spec.hidden // spec.heads
    attention = [spec.hidden * spec.hidden] * 2 + [spec.hidden * spec.kv_heads * head] * 2
    shares = attention + [spec.hidden * spec.intermediate] * 3
    per_layer = spec.shard_bytes / (3 * spec.layers) / torch.float32.itemsize
    return {
        f"model.rank{rank}.{kind}.{layer}.{index}": torch.empty(max(1, round(per_layer * share / sum(shares))))
        for kind in ("weight", "exp_avg", "exp_avg_sq")
        for layer in range(spec.layers)
        for index, share in enumerate(shares)
    }


def write_plainly(segments: list[torch.Tensor], place: Path, rank: int, threads: int) -> float:
    """Write all bytes with so many threads, each into a file of its own; seconds until all are durable."""
    start = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_write_file, [place / f"{rank}-{index}" for index in range(threads)], shares(segments, threads)))
    sync_folder(place)
    return time.monotonic() - start


def shares(segments: list[torch.Tensor], threads: int) -> list[list[memoryview]]:
    """The segments' bytes in pieces, dealt out so that each thread has about as many bytes."""
    dealt: list[list[memoryview]] = [[] for _ in range(threads)]
    for index, piece in enumerate(_pieces(segments)):
        dealt[index % threads].append(piece)
    return dealt


def _pieces(segments: list[torch.Tensor]) -> Iterator[memoryview]:
    for segment in segments:
        view = memoryview(segment.numpy())  # type: ignore[arg-type]
        yield from (view[start : start + PIECE] for start in range(0, len(view), PIECE))


def _write_file(path: Path, pieces: list[memoryview]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in pieces:
            written = 0
            while written < len(piece):
                written += os.write(file, piece[written:])
        os.fsync(file)
    finally:
        os.close(file)
