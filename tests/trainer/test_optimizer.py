"""The update: what is decayed, how fast, and the same again after a restart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks, whole
from tests.trainer.test_bad_loss import losses as judge_of
from trainer.model import build, loss_of
from trainer.optimizer import Clipped, build_optimizer, clip, learning_rate, seed_step, set_learning_rate, update

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
        update(optimizer, clipped)
        numbers = clipped.read()
        norms.append(numbers.norm)
        means.append(numbers.loss)
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


def _updates_that_were_made(rank: int, world_size: int, cases: list[tuple[float, float, float]]) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    config = configured()
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, 0.01)
    seen = []
    for norm, loss, ceiling in cases:
        torch.autograd.backward(loss_of(model, torch.zeros(2, 65, dtype=torch.int64)))
        before = {name: whole(value).clone() for name, value in model.state_dict().items()}
        update(optimizer, Clipped(torch.tensor([norm, loss, loss], dtype=torch.float64)), ceiling)
        optimizer.zero_grad()
        changed = {name for name, value in model.state_dict().items() if not whole(value).equal(before[name])}
        counts = {float(values["step"]) for values in optimizer.state.values()}
        moments = [values[key] for values in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
        finite = all(bool(whole(moment).isfinite().all()) for moment in moments)
        seen.append((len(changed) > 0, sorted(counts), finite))
    return seen


def test_an_update_is_left_out_and_not_counted_where_loss_or_norm_are_not_finite_or_the_loss_is_too_high() -> None:
    inf, nan = math.inf, math.nan
    cases = [
        (1.0, 2.0, inf), (nan, 2.0, inf), (1.0, nan, inf), (inf, 2.0, inf), (1.0, inf, inf), (1.0, 2.0, 2.0),
        (1.0, math.nextafter(2.0, 3.0), 2.0), (1.0, 2.0, -inf), (1.0, 2.0, 3.0),
    ]  # fmt: skip
    made = [True, False, False, False, False, True, False, False, True]
    counts = [[float(sum(made[: index + 1]))] for index in range(len(made))]
    expected = [(done, count, True) for done, count in zip(made, counts, strict=True)]
    for seen in run_ranks(_updates_that_were_made, 2, cases):
        assert seen == expected


def test_device_and_judge_are_of_one_opinion_about_every_loss(tmp_path: Path) -> None:
    """The device leaves out what the judge calls bad, for values as close to the limit as a double can be."""
    judge = judge_of(
        tmp_path,
        "recovery.on_bad_loss=skip_batch",
        "recovery.loss_spike_factor=3",
        "recovery.loss_spike_window_steps=8",
        "recovery.max_bad_losses=1000",
    )
    assert all(judge.accepts(step, 1.0, 0.7 + step / 97) for step in range(1, 9))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    limit = judge.ceiling(9)
    values = [limit, math.nextafter(limit, 0), math.nextafter(limit, 9), limit / 2, limit * 2, math.nan, math.inf]
    opinions = []
    for step, loss in enumerate(values, start=9):
        model(torch.ones(1, 2)).sum().backward()
        before = model.weight.detach().clone()
        ceiling = judge.ceiling(step)
        update(optimizer, Clipped(torch.tensor([1.0, loss, loss], dtype=torch.float64)), ceiling)
        opinions.append((not model.weight.equal(before), judge.accepts(step, 1.0, loss)))
    assert all(device == host for device, host in opinions)
    assert {device for device, _ in opinions} == {True, False}
