"""Which part of a mixture a sample comes from, and its how-manieth of that part: a pure function of its place.

Places are cut into blocks of BLOCK. Each part has a fixed number of slots in a block, by its weight, and a keyed
permutation deals the slots out over the block's places. So the shares are exact over every block, the count of a part's
earlier samples is arithmetic up to the block and a count within it, and nothing is saved: a restart at any step and at
any world size goes on with the same samples. A block is laid out whole when its first place is asked for (10 ms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainer.data.order import Ids, shuffled
from trainer.seeds import derive

BLOCK = 1 << 16
"""Places per block, which is also the resolution of weights: the smallest share is 1/65536."""


@dataclass(frozen=True)
class Mixture:
    """slots: of each part in a block; their sum is BLOCK."""

    slots: tuple[int, ...]

    @classmethod
    def of(cls, weights: Sequence[float]) -> Mixture:
        """Shares by weight, rounded to whole slots by largest remainder; every part has at least one."""
        total = sum(weights)
        exact = [weight / total * BLOCK for weight in weights]
        slots = [max(1, int(share)) for share in exact]
        # Largest remainder first, equal ones in order: no part is left to the order of a dict or a sort.
        order = sorted(range(len(exact)), key=lambda part: (int(exact[part]) - exact[part], part))
        for part in order[: max(0, BLOCK - sum(slots))]:
            slots[part] += 1
        while sum(slots) > BLOCK:  # parts that were raised to one slot: the largest give way
            slots[slots.index(max(slots))] -= 1
        return cls(tuple(slots))

    def place(self, places: Ids, seed: int) -> tuple[Ids, Ids]:
        """For each place of the endless sequence: the part, and its how-manieth sample of that part, from 0. A part's
        numbers come in order, each once, so that its own sequence of samples is used from front to back."""
        if len(self.slots) == 1:
            return np.zeros(len(places), dtype=np.int64), places.copy()
        blocks, within = np.divmod(places, BLOCK)
        parts = np.empty(len(places), dtype=np.int64)
        numbers = np.empty(len(places), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            laid_out, earlier = _block(self.slots, seed, block)
            parts[here] = laid_out[within[here]]
            numbers[here] = earlier[within[here]]
        return parts, blocks * np.asarray(self.slots, dtype=np.int64)[parts] + numbers


@lru_cache(maxsize=4)
def _block(slots: tuple[int, ...], seed: int, block: int) -> tuple[Ids, Ids]:
    """Of each place of a block: the part, and how many earlier places of the block have the same."""
    dealt = shuffled(np.arange(BLOCK, dtype=np.int64), BLOCK, derive(seed, "mixture"), block)
    edges = np.cumsum((0, *slots), dtype=np.int64)
    parts = np.searchsorted(edges, dealt, side="right").astype(np.int64) - 1
    in_order = np.argsort(parts, kind="stable")
    earlier = np.empty(BLOCK, dtype=np.int64)
    earlier[in_order] = np.arange(BLOCK, dtype=np.int64) - edges[parts[in_order]]
    return parts, earlier
