"""Committed steps made by hand: stock DCP writes them, the marker is built here. No writer process, no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from holdfast.checkpoint_folder import STATE, BlockHashes, FileRecord, Marker, damage, read_marker
from holdfast.config import names

if TYPE_CHECKING:
    from trainer.checkpoint.reader import Verify, VerifyingReader

ATTEMPT = "g1-c0-r0"


def write_marker(folder: Path, block_bytes: int, attempt: str = ATTEMPT, world_size: int = 1) -> Marker:
    """Commit what lies in a step folder, as it is."""
    step = names.step_of(folder.name)
    assert step is not None
    records = []
    for path in sorted(path for path in folder.iterdir() if path.name != names.COMMITTED):
        hashes = BlockHashes(block_bytes)
        hashes.update(path.read_bytes())
        records.append(FileRecord(path.name, hashes.bytes, hashes.digests()))
    marker = Marker(step, attempt, 1, world_size, tuple(records), block_bytes)
    (folder / names.COMMITTED).write_text(marker.text())
    return marker


def commit(folder: Path, tensors: dict[str, Any], block_bytes: int, files: int = 3, **description: Any) -> Marker:
    """Save and commit a state dict of one process, spread over so many files."""
    import torch.distributed.checkpoint as dcp

    folder.mkdir(parents=True)
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=True, thread_count=files)
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    (folder / STATE).write_text(json.dumps(description))
    return write_marker(folder, block_bytes)


def some_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Of many sizes and kinds: scalars, a transposed one, one of 300 kB; 700 kB in all."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"small.{n}": torch.randn(n, generator=generator) for n in range(1, 30)}
    tensors |= {f"medium.{n}": torch.randn(50 + n, 71, generator=generator) for n in range(20)}
    tensors["large"] = torch.randn(300, 257, generator=generator)
    tensors["half"] = torch.randn(11, 7, generator=generator).to(torch.bfloat16)
    tensors["count"] = torch.randint(1 << 40, (33,), generator=generator)
    tensors["scalar"] = torch.randn((), generator=generator)
    tensors["transposed"] = torch.randn(13, 29, generator=generator).t()
    return tensors


def two_steps(folder: Path, block_bytes: int) -> Path:
    """Commit steps 10 and 20: different values in files of the same names and sizes. Returns the folder."""
    for step in (10, 20):
        commit(folder / f"step-{step:08d}", some_tensors(step), block_bytes, step=step)
    return folder


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors to load into, full of what no save holds."""
    return {name: torch.full(tensor.shape, 77, dtype=tensor.dtype) for name, tensor in tensors.items()}


class Evil:
    """Unpickling one leaves a file."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


def marker_of(folder: Path) -> Marker:
    """The marker, which must be there."""
    marker = read_marker(folder)
    assert marker is not None
    return marker


def load(folder: Path, into: dict[str, torch.Tensor], verify: Verify = "full", threads: int = 3) -> None:
    """What restore does, in one process. Raises Damaged."""
    from trainer.checkpoint.reader import Damaged, VerifyingReader, committed_content

    marker = marker_of(folder)
    for problem in damage(folder, marker.files, marker.block_bytes, every=None):
        raise Damaged(problem)
    committed_content(folder, marker, STATE)
    with_reader(VerifyingReader(folder, marker, verify, threads), into)


def with_reader(source: VerifyingReader, into: dict[str, Any]) -> None:
    """dcp.load; the failure is raised as it was before torch wrapped it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    source.read_metadata()
    try:
        dcp.load(into, storage_reader=source, no_dist=True)
    except CheckpointException as error:
        raise error.failures[0][0] from None


def flip(path: Path, place: int) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << (place % 8)
    path.write_bytes(content)
