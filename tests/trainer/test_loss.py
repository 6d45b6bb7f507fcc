"""The loss in pieces: the gradients of the whole one, nothing computed twice, nothing computed for nobody; and whose
attention a block asks for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.trainer.counting import Count
from trainer import blocks
from trainer.loss import CrossEntropy

TOKENS, WIDTH, VOCABULARY, PIECE = 100, 16, 50, 32
"""The last of four pieces is shorter."""


def made(dtype: torch.dtype = torch.float32, bias: bool = False) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    output = nn.Linear(WIDTH, VOCABULARY, bias=bias).to(dtype)
    return output, torch.randn(TOKENS, WIDTH).to(dtype).requires_grad_(), torch.randint(VOCABULARY, (TOKENS,))


def gradients(output: nn.Linear, hidden: torch.Tensor) -> list[torch.Tensor]:
    wanted = [hidden, *output.parameters()]
    return [one.grad.double() for one in wanted if one.grad is not None]


@pytest.mark.parametrize("bias", [False, True])
def test_pieces_give_the_loss_and_the_gradients_of_the_whole(bias: bool) -> None:
    output, hidden, targets = made(bias=bias)
    whole = functional.cross_entropy(output(hidden), targets)
    torch.autograd.backward(whole)
    expected = gradients(output, hidden)
    output, hidden, targets = made(bias=bias)
    loss = CrossEntropy(output, PIECE).mean(hidden, targets)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    found = gradients(output, hidden)
    assert len(found) == 2 + bias
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_factor_that_bfloat16_cannot_hold_does_not_shift_all_gradients() -> None:
    factor = 1 / 3  # 0.3340 in bfloat16, 0.2 % too large
    output, hidden, targets = made(torch.bfloat16)
    torch.autograd.backward(CrossEntropy(output, PIECE).mean(hidden, targets) * factor)
    scaled = gradients(output, hidden)
    output, hidden, targets = made(torch.bfloat16)
    torch.autograd.backward(CrossEntropy(output, PIECE).mean(hidden, targets))
    for one, plain in zip(scaled, gradients(output, hidden), strict=True):
        ratio = float((one * plain).sum() / plain.square().sum())
        assert ratio == pytest.approx(factor, rel=5e-4)


def test_no_product_of_the_output_layer_is_computed_twice() -> None:
    output, hidden, targets = made()
    with Count() as count:
        torch.autograd.backward(CrossEntropy(output, PIECE).mean(hidden, targets))
    assert count.by_name["mm"] + count.by_name["addmm_"] == 3 * 4, "logits and two gradients of each of four pieces"


def test_without_gradients_only_the_logits_are_computed() -> None:
    output, hidden, targets = made()
    with Count() as count, torch.no_grad():
        loss = CrossEntropy(output, PIECE).mean(hidden, targets)
    assert count.by_name["mm"] == 4 and count.by_name["addmm_"] == 0
    assert float(loss) == pytest.approx(float(functional.cross_entropy(output(hidden), targets).detach()), rel=1e-6)


@pytest.mark.parametrize(("there", "capability", "first"), [(False, (9, 0), 1), (True, (8, 0), 1), (True, (9, 0), 3)])
def test_blocks_ask_for_cudnns_attention_first_where_a_gpu_is_as_new_as_hopper(
    monkeypatch: pytest.MonkeyPatch, there: bool, capability: tuple[int, int], first: int
) -> None:
    from holdfast.config.schema import Training

    class Block(nn.Module):
        def forward(self) -> int:
            return int(torch._C._get_sdp_priority_order()[0])

    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    before = torch._C._get_sdp_priority_order()
    block = Block()
    blocks.prepare([block], Training())
    assert block() == first
    assert torch._C._get_sdp_priority_order() == before


def test_attention_that_asks_for_cudnn_first_computes_the_same_where_there_is_none() -> None:
    query, key = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16)

    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)

    assert torch.equal(blocks._cudnn_first(attend)(), attend())
