"""One flipped bit: in a stored file, or in memory that another process will read."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint_folder import look

if TYPE_CHECKING:
    import torch


def newest(checkpoints: Path) -> int:
    """The newest committed step; 0 if there is none."""
    return max(look(checkpoints).committed, default=0)


def number(checkpoints: Path) -> int:
    """How many steps are committed."""
    return len(look(checkpoints).committed)


def flip_in(folders: Iterable[Path], rank: int, seed: str) -> Path:
    """Flip one bit of the rank's largest tensor file, in the first folder that has it; its path. A run that has
    changed its size has fewer ranks' files than ranks: then it is another's.

    Raises FileNotFoundError if no folder has such a file.
    """
    tried = list(folders)
    for folder in tried:
        mine = list(folder.glob(f"__{rank}_*.distcp")) or list(folder.glob("__*.distcp"))
        for path in sorted(mine, key=lambda path: path.stat().st_size, reverse=True)[:1]:
            where = random.Random(seed).randrange(path.stat().st_size)
            with open(path, "r+b") as file:
                file.seek(where)
                (byte,) = file.read(1)
                file.seek(where)
                file.write(bytes([byte ^ 1 << where % 8]))
            return path
    raise FileNotFoundError(f"no tensor file of rank {rank} in {', '.join(map(str, tried))}")


def flip_in_memory(tensors: Iterable[torch.Tensor], seed: str) -> None:
    """Flip one bit of the largest tensor."""
    import torch

    memory = max(tensors, key=lambda tensor: tensor.nbytes).view(-1).view(torch.uint8)
    where = random.Random(seed).randrange(memory.numel())
    memory[where] ^= 1 << where % 8
