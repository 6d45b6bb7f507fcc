"""Which sample comes when. No files, no processes: arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.order import sample_ids, shuffled

EPOCH_0 = [5, 6, 3, 1, 8, 0, 9, 4, 2, 7]
EPOCH_1 = [6, 8, 0, 7, 9, 2, 4, 1, 3, 5]


@settings(deadline=None)
@given(samples=st.integers(1, 3000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(samples: int, seed: int, epoch: int) -> None:
    ids = shuffled(np.arange(samples), samples, seed, epoch)
    assert sorted(ids.tolist()) == list(range(samples))


@settings(deadline=None)
@given(samples=st.integers(1, 500), first=st.integers(0, 10**6), count=st.integers(0, 300), cut=st.integers(0, 300))
def test_a_part_of_the_sequence_does_not_depend_on_how_it_is_asked_for(
    samples: int, first: int, count: int, cut: int
) -> None:
    cut = min(cut, count)
    whole = sample_ids(7, samples, first, count)
    parts = [sample_ids(7, samples, first, cut), sample_ids(7, samples, first + cut, count - cut)]
    assert whole.tolist() == np.concatenate(parts).tolist()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(shuffled(np.arange(40), 40, seed, epoch)) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len(set(orders)) == 9
    assert tuple(range(40)) not in orders


@pytest.mark.parametrize("samples", [16, 40, 1000])
def test_the_order_looks_random(samples: int) -> None:
    """Each sample is as likely to come in one place as in another, and neighbours do not stay together."""
    epochs = 600
    orders = np.stack([shuffled(np.arange(samples), samples, 3, epoch) for epoch in range(epochs)])
    firsts = np.bincount(orders[:, 0] * 8 // samples, minlength=8)
    expected = epochs / 8
    assert ((firsts - expected) ** 2 / expected).sum() < 26  # chi-square, 7 degrees of freedom, p < 0.0005
    followed = np.mean(orders[:, 1:] == orders[:, :-1] + 1)
    assert followed < 3 / samples


def test_the_order_is_the_same_in_every_version() -> None:
    """A change here makes runs that are resumed under the new code repeat and skip samples."""
    assert sample_ids(1234, 10, 0, 20).tolist() == [*EPOCH_0, *EPOCH_1]
