"""The loss of a causal language model, inside the model's own forward pass, so that FSDP has the output layer's weight.

The logits of a vocabulary of 128,256 take 513 kB per token in float32, and as much again for their gradient: 4.2 GB for
a sequence of 8,192. With training.loss_chunk_tokens they exist for that many tokens at a time. What backward needs of a
piece is computed beside its loss, while its logits are there, so that no product of the output layer is computed twice:
the gradient of its hidden states, and its part of the weight's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def compute_inside(model: nn.Module, chunk_tokens: int | None, *, whole_forward: bool = False) -> None:
    """From now on `model(..., targets=...)` returns the mean cross entropy, a float32 scalar; without targets it is as
    before. targets: int64 [samples, length]. Call before the model is sharded.

    whole_forward: the logits are those that the model's own forward pass gives, for families that do more to them than
    the output layer does; then all at once.
    """
    plain = model.forward
    if not whole_forward:
        _in_output_layer(model.get_output_embeddings(), chunk_tokens)  # type: ignore[operator]

    def forward(*args: Any, targets: torch.Tensor | None = None, **keywords: Any) -> Any:
        if targets is None:
            return plain(*args, **keywords)
        if whole_forward:
            return _of_logits(plain(*args, **keywords).logits, targets)
        body: Any = model.base_model
        output: Any = model.get_output_embeddings()  # type: ignore[operator]
        hidden = body(*args, use_cache=False, **keywords)[0].flatten(0, 1)
        return output(hidden, targets=targets.flatten())

    model.forward = forward  # an attribute of this model alone; the names of its parameters stay


def _in_output_layer(output: nn.Module, chunk_tokens: int | None) -> None:
    """From now on `output(hidden, targets=...)` is the loss: where the layer is an FSDP unit of its own, its weight is
    there while the layer is called, and only then."""
    loss = CrossEntropy(output, chunk_tokens)  # before it is sharded: that gives it another type

    def forward(hidden: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        return loss.plain(hidden) if targets is None else loss.mean(hidden, targets)

    output.forward = forward


def _of_logits(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class CrossEntropy:
    """Of an output layer of any kind, width -> vocabulary."""

    def __init__(self, output: nn.Module, chunk_tokens: int | None) -> None:
        from torch import nn

        self._output = output
        self._chunk_tokens = chunk_tokens
        self._is_one_product = type(output) is nn.Linear and output.bias is None
        self.plain = output.forward

    def mean(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Over tokens, a float32 scalar. hidden: [tokens, width]. targets: [tokens]."""
        import torch
        from torch.nn import functional

        chunk_tokens = self._chunk_tokens
        if chunk_tokens is None or chunk_tokens >= len(targets):
            return functional.cross_entropy(self.plain(hidden).float(), targets)
        if self._is_one_product:
            total = _in_pieces().apply(hidden, self._output.weight, targets, chunk_tokens, torch.is_grad_enabled())
        else:
            total = self._computed_again(hidden, targets, chunk_tokens)
        mean: torch.Tensor = total / len(targets)
        return mean

    def _computed_again(self, hidden: torch.Tensor, targets: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
        """The sum over tokens for an output layer of any kind: backward computes each piece again."""
        import torch
        from torch.nn import functional
        from torch.utils.checkpoint import checkpoint

        def of_piece(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.plain(part).float(), wanted, reduction="sum")

        total = torch.zeros((), device=hidden.device)
        for part, wanted in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
            total = total + checkpoint(of_piece, part, wanted, use_reentrant=False, preserve_rng_state=False)
        return total


@cache
def _in_pieces() -> Any:
    """The sum of the cross entropy over tokens as a function of torch's autograd. Made when it is first needed, since
    torch is imported late."""
    import torch
    from torch.autograd.function import once_differentiable

    class InPieces(torch.autograd.Function):
        @staticmethod
        def forward(
            context: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, tokens: int, learns: bool
        ) -> torch.Tensor:
            total = torch.zeros((), device=hidden.device)
            by_hidden = torch.zeros_like(hidden) if learns else None
            # In float32: rounded after each of many pieces, a sum in bfloat16 would be 1 % off and more.
            by_weight = torch.zeros_like(weight, dtype=torch.float32) if learns else None
            for start in range(0, len(targets), tokens):
                piece = slice(start, start + tokens)
                part, index = hidden[piece], targets[piece].unsqueeze(1)
                # float32 from here on, whatever the product's type is
                scores = torch.log_softmax(part @ weight.T, -1, dtype=torch.float32)
                total -= scores.gather(1, index).sum()
                if by_hidden is None or by_weight is None:
                    continue
                # Of the sum by the logits: the probability of each token, less 1 for the one that comes.
                scores.exp_().scatter_add_(1, index, torch.full_like(index, -1, dtype=torch.float32))
                by_logits = scores.to(weight.dtype)
                del scores
                torch.mm(by_logits, weight, out=by_hidden[piece])
                by_weight += by_logits.T @ part
                del by_logits  # else it would lie beside the next piece's
            if by_weight is not None:
                context.save_for_backward(by_hidden, by_weight.to(weight.dtype))
            return total

        @staticmethod
        @once_differentiable
        def backward(context: Any, by_total: torch.Tensor) -> Any:
            # Multiplied in float32: a factor rounded to bfloat16 would be 0.2 % off for all gradients alike. One of a
            # dimension and a place to write to make torch do so without a float32 copy of the gradient.
            factor = by_total.reshape(1)
            scaled = [torch.mul(one, factor, out=torch.empty_like(one)) for one in context.saved_tensors]
            return (*scaled, None, None, None)

    return InPieces
