"""The same claims on GPUs: all of the machine's, over NCCL."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from holdfast.config import RunConfig
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks, whole
from trainer.model import build, loss_of
from trainer.optimizer import Clipped, build_optimizer, clip, learning_rate, seed_step, set_learning_rate, update

pytestmark = pytest.mark.gpu

SAMPLES = 8


def gpu_config(*overrides: str) -> RunConfig:
    return configured(
        "device=cuda",
        "cluster.instance_type=gpu-local",
        "recovery.process_group_timeout_s=60",
        "model.tie_embeddings=true",
        *overrides,
    )


def tokens_of(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (SAMPLES, 65), generator=torch.Generator().manual_seed(seed))


def _weights_and_gradients(rank: int, world_size: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    config = gpu_config("model.dropout=0")
    model = build(config, device, init_device_mesh("cuda", (world_size,)))
    alone = build(config, device)
    same = all(whole(value).equal(alone.get_parameter(name)) for name, value in model.named_parameters())
    torch.autograd.backward(loss_of(model, tokens_of(1).chunk(world_size)[rank].to(device)))
    torch.autograd.backward(loss_of(alone, tokens_of(1).to(device)))
    apart = []
    for name, value in model.named_parameters():
        ours, expected = value.grad, alone.get_parameter(name).grad
        assert ours is not None
        assert expected is not None
        apart.append(float((whole(ours) - expected).abs().max()))
    return {"same": same, "apart": max(apart), "gradients": len(apart)}


def _bfloat16_steps(rank: int, world_size: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    config = gpu_config("model.dtype=bfloat16", "training.learning_rate=0.01", "training.warmup_steps=1")
    model = build(config, device, init_device_mesh("cuda", (world_size,)))
    optimizer = build_optimizer(model, config)
    losses, masks = [], []
    for step in range(1, 11):
        seed_step(config, step, rank)
        masks.append(torch.rand(2, device=device).tolist())
        set_learning_rate(optimizer, learning_rate(config, step))
        loss = loss_of(model, tokens_of(2).chunk(world_size)[rank].to(device))
        torch.autograd.backward(loss)
        clipped = clip(model, 1.0)
        update(optimizer, clipped)
        norm = clipped.read().norm
        optimizer.zero_grad()
        losses.append(loss.item())
    seed_step(config, 3, rank)
    stored = {str(value.dtype) for value in model.parameters()}
    return {
        "losses": losses,
        "norm": norm,
        "again": torch.rand(2, device=device).tolist() == masks[2],
        "stored": stored,
    }


def _both(rank: int, world_size: int) -> dict[str, Any]:
    return _weights_and_gradients(rank, world_size) | _bfloat16_steps(rank, world_size)


@cache
def on_all_gpus() -> list[dict[str, Any]]:
    return run_ranks(_both, torch.cuda.device_count(), timeout_s=100, backend="cpu:gloo,cuda:nccl")


def test_weights_are_the_same_on_any_number_of_gpus_and_gradients_those_of_one_big_batch() -> None:
    for result in on_all_gpus():
        assert result["same"]
        assert result["gradients"] > 10
        assert result["apart"] < 1e-5


def test_bfloat16_training_learns_with_float32_master_weights_and_seeded_dropout() -> None:
    results = on_all_gpus()
    assert all(result["losses"][-1] < result["losses"][0] - 0.5 for result in results)
    assert all(result["stored"] == {"torch.float32"} and result["again"] for result in results)
    assert len({result["norm"] for result in results}) == 1


def test_a_step_never_waits_for_the_gpu_before_its_update_is_launched() -> None:
    """A value read back in the middle would wait behind the staging copy of a save: the save would cost its whole
    copy. And a GPU that waits for the host idles, longer while a writer keeps the cores busy."""
    device = torch.device("cuda", 0)
    config = gpu_config("model.dropout=0")
    model = build(config, device)
    optimizer = build_optimizer(model, config)
    tokens = tokens_of(1).to(device)

    def step() -> Clipped:
        loss = loss_of(model, tokens)
        torch.autograd.backward(loss)
        clipped = clip(model, 1.0, loss.detach())
        update(optimizer, clipped)
        return clipped

    step().read()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        clipped = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert clipped.read().norm > 0
    assert {float(values["step"]) for values in optimizer.state.values()} == {2.0}


def test_a_bad_update_is_left_out_on_the_gpu() -> None:
    device = torch.device("cuda", 0)
    config = gpu_config("model.dropout=0")
    model = build(config, device)
    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, 0.01)
    for loss, ceiling, made in ((2.0, 3.0, True), (2.0, 1.0, False), (float("nan"), 3.0, False), (2.0, 3.0, True)):
        torch.autograd.backward(loss_of(model, tokens_of(1).to(device)))
        before = model.lm_head.weight.detach().clone()  # type: ignore[operator, union-attr]
        update(optimizer, Clipped(torch.tensor([1.0, loss, loss], dtype=torch.float64, device=device)), ceiling)
        assert (not model.lm_head.weight.equal(before)) == made  # type: ignore[operator, union-attr]
