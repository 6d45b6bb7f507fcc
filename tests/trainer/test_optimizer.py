"""The update: what is decayed, how fast, and the same again after a restart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks, whole
from trainer.model import build, loss_of
from trainer.optimizer import build_optimizer, clip, learning_rate, seed_step, set_learning_rate

CPU = torch.device("cpu")


def test_the_learning_rate_warms_up_and_falls_as_a_cosine_to_its_minimum() -> None:
    config = configured(
        "training.steps=110",
        "training.warmup_steps=10",
        "training.learning_rate=0.001",
        "training.min_learning_rate_ratio=0.1",
    )
    expected = {1: 1e-4, 5: 5e-4, 10: 1e-3, 60: 5.5e-4, 110: 1e-4, 500: 1e-4}
    for step, value in expected.items():
        assert learning_rate(config, step) == pytest.approx(value), step
    rates = [learning_rate(config, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_without_warm_up_the_first_step_already_falls() -> None:
    config = configured("training.steps=10", "training.warmup_steps=0")
    assert 0 < learning_rate(config, 2) < learning_rate(config, 1) < config.training.learning_rate


def test_weight_decay_is_for_matrices_only() -> None:
    config = configured("model.family=qwen2", "training.weight_decay=0.3", "training.beta2=0.9")
    model = build(config, CPU)
    optimizer = build_optimizer(model, config)
    decayed = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    assert {name: decayed[id(weight)] for name, weight in model.named_parameters()} == {
        name: 0.0 if name.endswith("bias") or "norm" in name else 0.3 for name, _ in model.named_parameters()
    }
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.9)}


def test_the_learning_rate_is_set_for_every_group() -> None:
    config = configured()
    optimizer = build_optimizer(build(config, CPU), config)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def _some_steps(rank: int, world_size: int, steps: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    config = configured()
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    optimizer = build_optimizer(model, config)
    losses, norms, means, masks = [], [], [], []
    for step in range(1, steps + 1):
        seed_step(config, step, rank)
        masks.append(torch.rand(3).tolist())
        seed_step(config, step, rank)
        set_learning_rate(optimizer, learning_rate(config, step))
        tokens = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(step * world_size + rank))
        loss = loss_of(model, tokens)
        torch.autograd.backward(loss)
        clipped = clip(model, 0.5, loss.detach())
        norms.append(clipped.norm)
        means.append(clipped.loss)
        optimizer.step()
        left = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        optimizer.zero_grad()
        losses.append(loss.item())
    return {
        "weights": {name: whole(value).numpy().tobytes() for name, value in model.state_dict().items()},
        "losses": losses,
        "norms": norms,
        "means": means,
        "left": float(whole(left)),
        "masks": masks,
    }


def test_two_runs_of_the_same_world_size_are_equal_bit_for_bit_with_dropout() -> None:
    first, again = run_ranks(_some_steps, 2, 5), run_ranks(_some_steps, 2, 5)
    assert first == again
    assert first[0]["weights"] == first[1]["weights"]
    assert first[0]["norms"] == first[1]["norms"], "the norm must be that of all ranks"
    assert first[0]["means"] == first[1]["means"] != first[0]["losses"]
    for mean, *each in zip(first[0]["means"], first[0]["losses"], first[1]["losses"], strict=True):
        assert mean == pytest.approx(sum(each) / 2, rel=1e-6), "the loss that rides along must be the mean over ranks"
    assert first[0]["norms"][-1] > 0.5, "clipping must have had something to do"
    assert first[0]["left"] == pytest.approx(0.5, rel=1e-3)


def test_dropout_depends_on_seed_step_and_rank_and_on_nothing_before() -> None:
    config = configured("model.dropout=0.5")
    model = build(config, CPU)
    tokens = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(0))

    def loss(step: int, rank: int, seed: int = 1) -> float:
        torch.rand(step + rank)  # whatever was drawn before must not matter
        seed_step(configured(f"seed={seed}"), step, rank)
        with torch.no_grad():
            return loss_of(model, tokens).item()

    assert loss(3, 1) == loss(3, 1)
    assert len({loss(3, 1), loss(4, 1), loss(3, 0), loss(3, 1, seed=2)}) == 4
