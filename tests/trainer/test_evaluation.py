"""The held-out loss: the same at any world size, logged when it is due, and without a trace in the training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.config import RunConfig
from holdfast.goodput.events import EventLog
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks
from trainer.evaluation import after_step, is_due
from trainer.restart.heartbeat import Pulse

SETS = ("data.validation_fraction=0.1", "training.evaluate_every_steps=4", "training.evaluation_samples=24")


def config_of(*more: str) -> RunConfig:
    return configured(*SETS, "data.limit_mib=0.05", *more)


def evaluated(rank: int, world_size: int, folder: str) -> tuple[float | None, float | None, bool, bool, list[Any]]:
    """(loss after step 4, after step 5, weights unchanged, in training mode, events). Collective."""
    from torch.distributed.device_mesh import init_device_mesh

    from trainer.data import open_dataset
    from trainer.model import build

    config = config_of()
    device = torch.device("cpu")
    model = build(config, device, init_device_mesh("cpu", (world_size,)))
    dataset = open_dataset(config, Path(folder), Path(folder) / "cache")
    log = EventLog(Path(folder) / f"events-{world_size}-{rank}", "rank", rank=rank)
    identity = SimpleNamespace(rank=rank, world_size=world_size)
    survivors: Any = SimpleNamespace(config=config, identity=identity, log=log, pulse=Pulse(None))
    before = [parameter.to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    random_state = torch.get_rng_state()
    first = after_step(4, survivors, model, dataset, device)
    second = after_step(5, survivors, model, dataset, device)
    now = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    same = all(bool((one == two).all()) for one, two in zip(before, now, strict=True))
    same &= bool((random_state == torch.get_rng_state()).all())
    return first, second, same, model.training, [json.loads(line) for line in log.path.read_text().splitlines()]


def test_the_loss_is_that_of_the_held_out_samples_at_any_world_size_and_training_is_as_before(tmp_path: Path) -> None:
    losses = []
    for world_size in (1, 2):
        results = run_ranks(evaluated, world_size, str(tmp_path), timeout_s=100)
        for first, second, same, training, events in results:
            assert second is None and same and training
            (span,) = (event for event in events if event["name"] == "eval")
            assert span["step"] == 4 and span["loss"] == first and span["dur"] > 0
        assert len({first for first, *_ in results}) == 1
        losses.append(results[0][0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(5.5, abs=0.3), "random weights: about ln 256"


def trained(rank: int, world_size: int, folder: str, evaluate: bool) -> list[Any]:
    """This rank's weights after three steps. Collective."""
    from torch.distributed.device_mesh import init_device_mesh

    from trainer import optimizer as optimizers
    from trainer.data import open_dataset
    from trainer.model import build, loss_of

    config = config_of("training.evaluate_every_steps=1", "model.dropout=0.1")
    device = torch.device("cpu")
    model = build(config, device, init_device_mesh("cpu", (world_size,)))
    optimizer = optimizers.build_optimizer(model, config)
    dataset = open_dataset(config, Path(folder), Path(folder) / "cache")
    log = EventLog(Path(folder) / f"events-{rank}-{evaluate}", "rank", rank=rank)
    identity = SimpleNamespace(rank=rank, world_size=world_size)
    survivors: Any = SimpleNamespace(config=config, identity=identity, log=log, pulse=Pulse(None))
    for step in (1, 2, 3):
        optimizers.seed_step(config, step, rank)
        torch.autograd.backward(loss_of(model, dataset.batch(step, rank, world_size)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if evaluate:
            assert after_step(step, survivors, model, dataset, device) is not None
    return [parameter.to_local().tolist() for parameter in model.parameters()]  # type: ignore[attr-defined]


def test_training_with_evaluations_ends_with_the_same_weights_as_without(tmp_path: Path) -> None:
    with_it = run_ranks(trained, 2, str(tmp_path), True, timeout_s=100)
    assert with_it == run_ranks(trained, 2, str(tmp_path), False, timeout_s=100)


def test_it_is_due_every_so_many_steps_and_at_the_last() -> None:
    config = config_of("training.steps=10")
    assert [step for step in range(1, 11) if is_due(config, step)] == [4, 8, 10]
    assert not any(is_due(configured(), step) for step in range(1, 21))
