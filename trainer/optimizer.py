"""The update: AdamW, its learning rate as a pure function of the step, and gradient clipping. No scheduler state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config import RunConfig
from trainer.seeds import seed_step

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["build_optimizer", "clip", "learning_rate", "seed_step", "set_learning_rate"]


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW over all parameters; weight decay on matrices only (not on norms and biases). Fused on CUDA."""
    import torch

    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    training = config.training
    on_cuda = config.device == "cuda"
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=learning_rate(config, 1),
        betas=(training.beta1, training.beta2),
        fused=on_cuda,
        foreach=not on_cuda,
    )


def learning_rate(config: RunConfig, step: int) -> float:
    """Learning rate of `step` (from 1 on): linear warm-up to the peak, then cosine to the minimum at the last step."""
    training = config.training
    if step <= training.warmup_steps:
        return training.learning_rate * step / training.warmup_steps
    decay_steps = training.steps - training.warmup_steps
    progress = min(1.0, (step - training.warmup_steps) / decay_steps)
    lowest = training.learning_rate * training.min_learning_rate_ratio
    return lowest + (training.learning_rate - lowest) * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use this learning rate in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = value


@dataclass(frozen=True)
class Clipped:
    """The same on all ranks. norm: of the gradients over all ranks, before they were clipped. loss: mean over ranks."""

    norm: float
    loss: float


def clip(model: nn.Module, max_norm: float, loss: torch.Tensor | None = None) -> Clipped:
    """Scale gradients so that their norm over all ranks is at most `max_norm`. One collective of two numbers, which
    also carries `loss`, this rank's (none: 0); reading them waits until the device has caught up.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    squared = get_total_norm(local).square()
    sums = torch.stack([squared, torch.zeros_like(squared) if loss is None else loss.to(squared.dtype)])
    world_size = 1
    if dist.is_initialized():
        dist.all_reduce(sums)
        world_size = dist.get_world_size()
    norm = sums[0].sqrt()
    clip_grads_with_norm_(model.parameters(), max_norm, norm)
    before, total = torch.stack([norm, sums[1]]).tolist()
    return Clipped(before, total / world_size)
