"""Each rank reads the rows of its own shards, all rows are read once, and together they are the whole model."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.gloo import run_ranks, whole
from tests.trainer.model_folders import OTHERS, config_folder_of, folder_of, random_from, trained_from
from tests.trainer.test_model import CPU, tokens_of
from tests.trainer.test_weights import loaded

UNEVEN: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 257},
    "gpt2": {"vocab_size": 257},
    "gemma2": {"vocab_size": 257},
}
"""Kinds that are spread, two of them tied; 257 rows are cut evenly by no number of ranks, 64 not by 3."""


class Measured:
    """A safetensors file that counts which rows of which tensor are read."""

    def __init__(self, opened: Any, reads: list[tuple[str, int, int, int]], name: str = "") -> None:
        self._opened, self._reads, self._name = opened, reads, name

    def __enter__(self) -> Measured:
        return Measured(self._opened.__enter__(), self._reads)

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def get_slice(self, name: str) -> Measured:
        return Measured(self._opened.get_slice(name), self._reads, name)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        part: torch.Tensor = self._opened[rows]
        self._reads.append((self._name, rows.start, rows.stop, part.nbytes))
        return part


def _spread(rank: int, world_size: int, folder: str, at_once: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    from trainer import weights_load
    from trainer.model import build, loss_of
    from trainer.weights import open_weights

    reads: list[tuple[str, int, int, int]] = []
    module: Any = weights_load
    opener = module.safe_open
    module.safe_open = lambda *args, **keywords: Measured(opener(*args, **keywords), reads)
    module.AT_ONCE_BYTES = at_once
    config = trained_from(Path(folder))
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    weights = open_weights(Path(folder))
    size = weights_load.load(model, weights, weights_load.matched(model, weights))
    state = {name: whole(value.detach()).numpy() for name, value in model.named_parameters()}
    return {"state": state, "reads": reads, "size": size, "loss": loss_of(model, tokens_of(4)).item()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: folder_of(kind, place / kind, shard="60KB", **changes) for kind, changes in UNEVEN.items()}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", UNEVEN)
def test_what_ranks_read_in_parts_is_what_one_reads_whole(folders: dict[str, Path], kind: str, world_size: int) -> None:
    alone = loaded(trained_from(folders[kind]))
    # A few rows at a time for one number of ranks, all at once for the other.
    ranks = run_ranks(_spread, world_size, str(folders[kind]), 4096 if world_size == 2 else 1 << 28)
    expected = {name: value.detach() for name, value in alone.named_parameters()}
    for result in ranks:
        assert result["state"].keys() == expected.keys()
        assert all(torch.from_numpy(result["state"][name]).equal(value) for name, value in expected.items())
        assert result["loss"] == pytest.approx(ranks[0]["loss"], rel=1e-5)
    rows: Counter[tuple[str, int]] = Counter()
    for result in ranks:
        assert result["size"] == sum(size for *_, size in result["reads"])
        for name, start, stop, _ in result["reads"]:
            rows.update((name, row) for row in range(start, stop))
    total = sum(value.nbytes for value in expected.values())
    assert set(rows.values()) == {1}, "no row is read by two ranks"
    assert sum(result["size"] for result in ranks) == total
    assert max(result["size"] for result in ranks) < 1.1 * total / world_size


def _random(rank: int, world_size: int, folders: list[str]) -> list[dict[str, Any]]:
    from torch.distributed.device_mesh import init_device_mesh

    from trainer.model import build

    mesh = init_device_mesh("cpu", (world_size,))
    models = [build(random_from(Path(folder)), CPU, mesh) for folder in folders]
    return [{name: whole(value.detach()).numpy() for name, value in model.named_parameters()} for model in models]


@cache
def _drawn_by(world_size: int, *folders: str) -> list[list[dict[str, Any]]]:
    return run_ranks(_random, world_size, list(folders))


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("configs")
    return {kind: config_folder_of(kind, place / kind, vocab_size=257) for kind in OTHERS}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", OTHERS)
def test_random_values_of_another_family_are_the_same_at_any_world_size(
    described: dict[str, Path], kind: str, world_size: int
) -> None:
    from trainer.model import build

    alone = dict(build(random_from(described[kind]), CPU).named_parameters())
    for ranks in _drawn_by(world_size, *map(str, described.values())):
        state = ranks[OTHERS.index(kind)]
        assert state.keys() == alone.keys()
        assert all(torch.from_numpy(state[name]).equal(value) for name, value in alone.items())
