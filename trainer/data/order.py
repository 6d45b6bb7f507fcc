"""Which sample comes when: a pure function of (seed, step), so there is no position to save and none to lose.

The samples of an epoch are permuted by a keyed bijection (a Feistel network with cycle walking) that is computed only
for the positions asked for. A permutation drawn as a whole would cost every rank seconds and hundreds of megabytes at
every restart (36 million samples, as a full 1200 GiB file system holds: 3 s), and would depend on numpy's version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.seeds import derive

Ids = npt.NDArray[np.int64]

_ROUNDS = 8
"""Four make a Feistel network a good one; small data sets, with few bits in each half, need more."""


def sample_ids(seed: int, samples: int, first: int, count: int) -> Ids:
    """Part of the endless sequence of samples: `count` of them from place `first` on, each in 0 .. samples - 1.

    One epoch follows another without a gap, each with its own order; within one every sample comes exactly once.
    """
    return samples_at(seed, samples, np.arange(first, first + count, dtype=np.int64))


def samples_at(seed: int, samples: int, places: Ids) -> Ids:
    """The samples at any places of the same endless sequence."""
    epochs, positions = np.divmod(places, samples)
    ids = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        ids[here] = shuffled(positions[here], samples, seed, int(epoch))
    return ids


def shuffled(positions: Ids, samples: int, seed: int, epoch: int) -> Ids:
    """The samples at these positions of one epoch: a permutation of 0..samples-1 chosen by (seed, epoch)."""
    half = max(1, ((samples - 1).bit_length() + 1) // 2)
    keys = [np.uint64(derive(seed, "order", epoch, number)) for number in range(_ROUNDS)]
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():  # at most three of four values of the power of two lie outside, so this ends quickly
        values[outside] = _permute(values[outside], half, keys)
        outside = values >= samples
    return values.astype(np.int64)


def _permute(values: npt.NDArray[np.uint64], half: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 0 .. 4**half - 1."""
    width, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> width, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << width) | right


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every bit of the input over all bits of the output (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
