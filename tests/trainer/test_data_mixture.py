"""Mixtures and held-out samples: pure functions of (seed, step), at any world size, and after a restart at any step."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import ConfigError, RunConfig
from tests.trainer.test_data import LENGTH, numbered_text, small
from trainer.data import Dataset, open_dataset
from trainer.data.mixture import BLOCK, Mixture

STEPS = 12
PARTS = [1, 0, 0, 0, 1, 0, 0, 0]
NUMBERS = [0, 0, 1, 2, 1, 3, 4, 5]


def mixed(*more: str) -> RunConfig:
    """Two parts of 40 and 7 samples, three to one."""
    return small("", 4, "data.path=[]", "data.mixture=[{path: large, weight: 3}, {path: tiny, weight: 1}]", *more)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    numbered_text(tmp_path / "large", 40)
    (tmp_path / "tiny").write_text("".join(f"t{number:06d} " for number in range(7)) + "!")
    return tmp_path


def opened(storage: Path, config: RunConfig) -> Dataset:
    return open_dataset(config, storage, storage / "cache")


def consumed(dataset: Dataset, worlds: list[int]) -> str:
    """SHA-256 of all that the ranks were given, in global order. worlds: the world size of each step."""
    total = hashlib.sha256()
    for step, world_size in enumerate(worlds, start=1):
        for rank in range(world_size):
            for micro in range(4 // world_size):
                total.update(dataset.batch(step, rank, world_size, micro=micro).numpy().tobytes())
    return total.hexdigest()


# --- the same samples everywhere ---


def test_ranks_consume_the_same_mixture_in_the_same_order_for_worlds_of_1_2_and_4(storage: Path) -> None:
    dataset = opened(storage, mixed())
    hashes = {consumed(dataset, [world_size] * STEPS) for world_size in (1, 2, 4)}
    assert len(hashes) == 1
    other = opened(storage, mixed("seed=7"))
    assert consumed(other, [1] * STEPS) not in hashes


@pytest.mark.parametrize("restart_at", range(1, STEPS))
def test_a_restart_at_any_step_and_at_another_world_size_consumes_the_same_mixture(
    storage: Path, restart_at: int
) -> None:
    unbroken = consumed(opened(storage, mixed()), [4] * STEPS)
    total = hashlib.sha256()
    for steps, world_size in ((range(1, restart_at + 1), 4), (range(restart_at + 1, STEPS + 1), 2)):
        dataset = opened(storage, mixed())  # a new process: nothing but the step is carried over
        for step in steps:
            for rank in range(world_size):
                for micro in range(4 // world_size):
                    total.update(dataset.batch(step, rank, world_size, micro=micro).numpy().tobytes())
    assert total.hexdigest() == unbroken


def test_a_small_part_begins_its_next_epoch_and_has_every_sample_once_in_each(storage: Path) -> None:
    dataset = opened(storage, mixed())
    steps = BLOCK // 4
    ids = np.concatenate([dataset.sample_ids(step) for step in range(1, steps + 1)])
    seen = Counter(ids.tolist())
    assert {dataset._locate(sample)[0].tokens for sample in (0, 39)} == {321}
    tiny = [seen[40 + sample] for sample in range(7)]
    large = [seen[sample] for sample in range(40)]
    assert sum(large) == 3 * sum(tiny) == 3 * BLOCK // 4, "the shares are exact over a block"
    assert max(tiny) - min(tiny) <= 1 and max(large) - min(large) <= 1
    assert dataset.epochs(steps) == pytest.approx([sum(large) / 40, sum(tiny) / 7])


def test_an_epoch_of_a_part_begins_when_every_sample_of_it_was_used(storage: Path) -> None:
    dataset = opened(storage, mixed())
    ids = np.concatenate([dataset.sample_ids(step) for step in range(1, 100)]).tolist()
    tiny = [sample for sample in ids if sample >= 40]
    large = [sample for sample in ids if sample < 40]
    for size, used in ((7, tiny), (40, large)):
        epochs = [used[start : start + size] for start in range(0, len(used) // size * size, size)]
        assert len(epochs) > 2
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert epochs[0] != epochs[1]


@settings(deadline=None, max_examples=20)
@given(
    weights=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=5),
    first=st.integers(0, 3 * BLOCK),
    count=st.integers(1, 200),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_place_does_not_depend_on_how_it_is_asked_for(
    weights: list[float], first: int, count: int, seed: int
) -> None:
    mixture = Mixture.of(weights)
    assert sum(mixture.slots) == BLOCK and min(mixture.slots) >= 1
    together = mixture.place(np.arange(first, first + count), seed)
    alone = [mixture.place(np.asarray([place]), seed) for place in range(first, first + count)]
    assert together[0].tolist() == [int(part[0]) for part, _ in alone]
    assert together[1].tolist() == [int(number[0]) for _, number in alone]


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.7, 0.2, 0.1], [1.0, 1e-9], [1.0]])
def test_the_numbers_of_a_part_come_in_order_each_once(weights: list[float]) -> None:
    mixture = Mixture.of(weights)
    parts, numbers = mixture.place(np.arange(2 * BLOCK), 3)
    for part, slots in enumerate(mixture.slots):
        assert numbers[parts == part].tolist() == list(range(2 * slots))


def test_the_mixture_is_the_same_in_every_version() -> None:
    """A change here makes runs that are resumed under the new code repeat and skip samples."""
    parts, numbers = Mixture.of([3.0, 1.0]).place(np.arange(8), 1234)
    assert (parts.tolist(), numbers.tolist()) == (PARTS, NUMBERS)


def test_shares_order_and_held_out_part_change_the_fingerprint_and_the_seed_does_not(storage: Path) -> None:
    def fingerprint(*more: str) -> str:
        return opened(storage, mixed(*more)).fingerprint

    first = fingerprint()
    assert fingerprint("seed=9") == first
    changed = [
        fingerprint("data.mixture.0.weight=4"),
        fingerprint("data.mixture=[{path: tiny, weight: 1}, {path: large, weight: 3}]"),
        fingerprint("data.validation_fraction=0.2"),
    ]
    assert len({first, *changed}) == 4


def test_a_part_that_makes_no_sample_is_refused_by_its_own_key(storage: Path) -> None:
    (storage / "tiny").write_text("short")
    with pytest.raises(ConfigError, match=r"data\.mixture\.1\.path = \['tiny'\]: its 5 tokens make 0 samples"):
        opened(storage, mixed())


def test_a_part_that_is_missing_is_refused_by_its_own_key(storage: Path) -> None:
    (storage / "tiny").unlink()
    with pytest.raises(ConfigError, match=r"data\.mixture\.1\.path = 'tiny': .*tiny does not exist"):
        opened(storage, mixed())


# --- held-out samples ---


def held_out(dataset: Dataset, world_size: int) -> list[str]:
    """The held-out samples in the order of their global batches."""
    ranks = [[tokens for tokens, _ in dataset.validation_batches(rank, world_size)] for rank in range(world_size)]
    passes = 4 // world_size
    rows = []
    for batch in range(len(ranks[0]) // passes):
        for rank in range(world_size):
            for tokens in ranks[rank][batch * passes : (batch + 1) * passes]:
                rows += [bytes(row[:LENGTH].tolist()).decode() for row in tokens]
    return rows


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_held_out_samples_are_the_same_at_any_world_size_and_seed_and_never_trained_on(
    storage: Path, world_size: int
) -> None:
    config = small("large", 4, "data.validation_fraction=0.2", "training.evaluation_samples=8", "seed=1")
    dataset = opened(storage, config)
    assert dataset.samples == 32
    found = held_out(dataset, world_size)
    assert found == held_out(opened(storage, small("large", 4, *_held("seed=2"))), 1)
    assert sorted(found) == [f"{number:07d} " for number in range(32, 40)]
    trained = {int(sample) for step in range(1, 41) for sample in dataset.sample_ids(step)}
    assert trained == set(range(32))


def _held(*more: str) -> list[str]:
    return ["data.validation_fraction=0.2", "training.evaluation_samples=8", *more]


def test_a_mixture_holds_out_the_end_of_each_part(storage: Path) -> None:
    dataset = opened(storage, mixed("data.validation_fraction=0.2", "training.evaluation_samples=8"))
    rows = held_out(dataset, 2)
    legal = {f"{number:07d} " for number in range(32, 40)} | {f"t{number:06d} " for number in (5, 6)}
    assert len(rows) == 8 and set(rows) <= legal
    trained = {sample for step in range(1, 200) for sample in dataset.sample_ids(step).tolist()}
    assert trained == set(range(32)) | set(range(40, 45))


def test_validation_data_of_its_own_leaves_the_training_data_as_it_is(storage: Path) -> None:
    plain = opened(storage, small("large"))
    config = small("large", 4, "data.validation_path=[tiny]", "training.evaluation_samples=100")
    dataset = opened(storage, config)
    assert (dataset.fingerprint, dataset.samples) == (plain.fingerprint, plain.samples)
    assert dataset.evaluation_samples == 4, "whole global batches of what is there"
    assert set(held_out(dataset, 2)) <= {f"t{number:06d} " for number in range(7)}


def test_too_few_held_out_samples_for_an_evaluation_are_refused(storage: Path) -> None:
    config = small("large", 4, "data.validation_fraction=0.05", "training.evaluate_every_steps=5")
    refusal = r"data\.validation_fraction = '0\.05': it holds out 2 samples, fewer than training\.global_batch_size=4"
    with pytest.raises(ConfigError, match=refusal):
        opened(storage, config)
