"""The update: AdamW, its learning rate as a pure function of the step, and gradient clipping. No scheduler state.

Nothing here makes the host wait between backward pass and update: clipping and update are launched together, and the
device itself leaves the update out if loss or gradient norm are not what they must be. The host reads them afterwards,
while the device is busy with the update, and launches the next forward pass meanwhile. With a wait before the update
the device idled there, and for longer while the writer of a save kept the cores busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config import RunConfig
from trainer.seeds import seed_step

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["build_optimizer", "clip", "learning_rate", "seed_step", "set_learning_rate", "update"]


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW over all parameters; weight decay on matrices only (not on norms and biases)."""
    import torch

    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    training = config.training
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=learning_rate(config, 1),
        betas=(training.beta1, training.beta2),
        fused=True,  # the only kind that can leave an update out by the word of a tensor
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
class Numbers:
    """norm: of the gradients over all ranks, before they were clipped. loss: mean over ranks. Both the same on all
    ranks. own_loss: of this rank."""

    norm: float
    loss: float
    own_loss: float


class Clipped:
    """The numbers of a step on their way from the device to the host."""

    def __init__(self, numbers: torch.Tensor) -> None:
        import torch

        self.numbers = numbers
        """float64 [3], on the device: norm, loss, own_loss."""
        self._host = numbers.to("cpu", non_blocking=True)
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> Numbers:
        """Waits until the device has come so far, and not for what was launched behind it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return Numbers(*self._host.tolist())


def clip(model: nn.Module, max_norm: float, loss: torch.Tensor | None = None) -> Clipped:
    """Scale gradients so that their norm over all ranks is at most `max_norm`. One collective of two numbers, which
    also carries `loss`, this rank's (none: 0).
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    squared = get_total_norm(local).square()
    own_loss = torch.zeros_like(squared) if loss is None else loss.to(squared.dtype)
    sums = torch.stack([squared, own_loss])
    world_size = 1
    if dist.is_initialized():
        dist.all_reduce(sums)
        world_size = dist.get_world_size()
    norm = sums[0].sqrt()
    clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return Clipped(torch.stack([norm.double(), sums[1].double() / world_size, own_loss.double()]))


def update(optimizer: torch.optim.Optimizer, clipped: Clipped, ceiling: float = math.inf) -> None:
    """Launch the update; the device leaves it out, and does not count it, if norm or loss are not finite or the loss
    is above `ceiling`."""
    norm, loss, _ = clipped.numbers
    good = norm.isfinite() & loss.isfinite() & (loss <= ceiling)
    # By this attribute torch's own GradScaler tells a fused optimizer the same.
    optimizer.found_inf = good.logical_not().float()  # type: ignore[attr-defined]
    optimizer.step()
