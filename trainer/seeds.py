"""Every random number of a run is a function of the seed and of what it is for: no generator state to save."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from holdfast.config import RunConfig

if TYPE_CHECKING:
    import torch


def derive(*parts: str | int) -> int:
    """A number of 63 bits that depends on all parts and their order; the same on every machine and in every version."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(device: torch.device | str, *parts: str | int) -> torch.Generator:
    """A torch generator seeded by `derive(*parts)`. CPU and CUDA generators of one seed give different numbers."""
    import torch

    return torch.Generator(device).manual_seed(derive(*parts))


def seed_step(config: RunConfig, step: int, rank: int) -> None:
    """Seed torch's default generators, so that dropout is a function of (seed, step, rank). Call it as a step begins.

    step: counts from 1. A step that is run again after a restart draws the same masks as the first time.
    """
    import torch

    torch.manual_seed(derive(config.seed, "step", step, rank))
