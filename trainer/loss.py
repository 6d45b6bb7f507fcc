"""The loss of a causal language model, inside the model's own forward pass, so that FSDP has the output layer's weight.

The logits of a vocabulary of 128,256 take 513 kB per token in float32, and as much again for their gradient: 4.2 GB for
a sequence of 8,192. With training.loss_chunk_tokens they exist for that many tokens at a time, and backward computes
them again, piece by piece: one more product of the output layer, 2 % of Llama-3.1-8B's arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def compute_inside(model: nn.Module, chunk_tokens: int | None) -> None:
    """From now on `model(..., targets=...)` returns the mean cross entropy, a float32 scalar; without targets it is as
    before. targets: int64 [samples, length]. Call before the model is sharded.
    """
    plain = model.forward

    def forward(*args: Any, targets: torch.Tensor | None = None, **keywords: Any) -> Any:
        if targets is None:
            return plain(*args, **keywords)
        body: Any = model.base_model
        output: Any = model.get_output_embeddings()  # type: ignore[operator]
        hidden = body(*args, **keywords)[0].flatten(0, 1)
        return mean_cross_entropy(output, hidden, targets.flatten(), chunk_tokens)

    model.forward = forward  # an attribute of this model alone; the names of its parameters stay


def mean_cross_entropy(
    output: nn.Module, hidden: torch.Tensor, targets: torch.Tensor, chunk_tokens: int | None
) -> torch.Tensor:
    """Mean over tokens. hidden: [tokens, width]. targets: [tokens]. output: width -> vocabulary."""
    import torch
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    if chunk_tokens is None or chunk_tokens >= len(targets):
        return functional.cross_entropy(output(hidden).float(), targets)

    def of_chunk(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output(part).float(), wanted, reduction="sum")

    total = torch.zeros((), device=hidden.device)
    for part, wanted in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        total = total + checkpoint(of_chunk, part, wanted, use_reentrant=False, preserve_rng_state=False)
    return total / len(targets)
