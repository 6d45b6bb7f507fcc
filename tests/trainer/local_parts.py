"""Small parts for tests of the local tier: bytes that a seed decides, and their records."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.checkpoint.local.files import write_part
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part, Save

BLOCK = 1 << 10
"""Small blocks, so that a few KB have many."""


def some_bytes(seed: int, *sizes: int) -> list[torch.Tensor]:
    """Segments of these sizes."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=made) for size in sizes]


def zeros(*sizes: int) -> list[torch.Tensor]:
    """Empty segments to read into."""
    return [torch.zeros(size, dtype=torch.uint8) for size in sizes]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bit equality, segment by segment."""
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def draft(save: Save, rank: int, world_size: int, count: int, layout: str = "layout") -> Part:
    """A part that is to be written."""
    return Part(save, rank, world_size, layout, count, block_bytes=BLOCK)


def saved(folder: Path, save: Save, rank: int, world_size: int, segments: list[torch.Tensor]) -> Part:
    """Write a part of these segments."""
    flat = FlatBytes(segments)
    return write_part(folder, draft(save, rank, world_size, flat.bytes), flat)
