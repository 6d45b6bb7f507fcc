"""The model is the same however it is spread, and is what transformers would build."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.config import RunConfig, sizing
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks, whole
from trainer.imports import model_classes
from trainer.model import build, hugging_face_settings, loss_of
from trainer.parallel import blocks

FAMILIES = ("llama", "gpt2", "qwen2", "mistral")
VARIANTS = [(family, tied) for family in FAMILIES for tied in (False, True)]
CPU = torch.device("cpu")


def model_config(family: str, tied: bool = False, *more: str) -> RunConfig:
    heads = ["model.kv_heads=4"] if family == "gpt2" else []
    return configured(f"model.family={family}", f"model.tie_embeddings={str(tied).lower()}", *heads, *more)


def tokens_of(seed: int, samples: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (samples, 65), generator=torch.Generator().manual_seed(seed))


# --- against transformers ---


@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_logits_and_loss_equal_those_of_a_plainly_built_model_with_the_same_weights(family: str, tied: bool) -> None:
    config = model_config(family, tied)
    ours = build(config, CPU).eval()
    configuration, causal_lm = model_classes(family)
    plain = causal_lm(configuration(**hugging_face_settings(config.model))).eval()
    plain.load_state_dict(ours.state_dict())
    tokens = tokens_of(1)
    with torch.no_grad():
        expected = plain(input_ids=tokens[:, :-1], labels=None).logits
        assert ours(input_ids=tokens[:, :-1]).logits.equal(expected)
        by_hand = -expected.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()
        assert loss_of(ours, tokens).item() == pytest.approx(by_hand.item(), rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_drawn_as_transformers_draws_them(family: str) -> None:
    config = model_config(family, False, "model.hidden_size=128", "model.intermediate_size=256")
    torch.manual_seed(0)
    configuration, causal_lm = model_classes(family)
    theirs = dict(causal_lm(configuration(**hugging_face_settings(config.model))).named_parameters())
    ours = dict(build(config, CPU).named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert parameter.mean().item() == pytest.approx(theirs[name].mean().item(), abs=1e-3), name
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(theirs[name].std().item(), rel=0.05), name


@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_parameters_are_as_many_as_the_sizing_formula_says(family: str, tied: bool) -> None:
    config = model_config(family, tied)
    assert sum(parameter.numel() for parameter in build(config, CPU).parameters()) == sizing.parameters(config.model)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_the_transformer_blocks_of_every_family(family: str) -> None:
    model = build(model_config(family, False, "model.layers=3"), CPU)
    assert [type(block).__name__ for block in blocks(model)] in (
        ["LlamaDecoderLayer"] * 3,
        ["GPT2Block"] * 3,
        ["Qwen2DecoderLayer"] * 3,
        ["MistralDecoderLayer"] * 3,
    )


def test_blocks_of_an_unknown_model_are_its_largest_module_list() -> None:
    many = nn.ModuleList([nn.Linear(50, 50), nn.Linear(50, 50)])
    assert blocks(nn.ModuleDict({"few": nn.ModuleList([nn.Linear(2, 2)] * 9), "many": many})) == list(many)
    assert blocks(nn.Linear(2, 2)) == []


# --- initialization ---


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = (build(model_config("llama", False, f"seed={seed}"), CPU) for seed in (1, 1, 2))
    assert all(a.equal(b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not first.get_parameter("lm_head.weight").equal(other.get_parameter("lm_head.weight"))


def test_no_two_weights_of_a_model_are_alike() -> None:
    matrices = [parameter for parameter in build(model_config("llama"), CPU).parameters() if parameter.ndim > 1]
    starts = {tuple(parameter.flatten()[:4].tolist()) for parameter in matrices}
    assert len(starts) == len(matrices)


def test_a_model_that_waits_for_its_checkpoint_is_nan_everywhere_but_in_its_buffers() -> None:
    model = build(model_config("llama"), CPU, initialize=False)
    assert all(parameter.isnan().all() for parameter in model.parameters())
    assert not any(buffer.isnan().any() for buffer in model.buffers())


def test_a_buffer_that_transformers_does_not_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, causal_lm = model_classes("llama")
    monkeypatch.setattr(causal_lm.__base__, "_init_weights", lambda self, module: None)
    with pytest.raises(RuntimeError, match=r"does not compute the buffer model\.rotary_emb\.(original_)?inv_freq"):
        build(model_config("llama"), CPU)


# --- spread over ranks ---


def _state_and_loss(rank: int, world_size: int, family: str, tied: bool) -> dict[str, Any]:
    """Whole weights, then the gradients of one global batch of 8, cut as the loop would cut it."""
    from torch.distributed.device_mesh import init_device_mesh

    config = model_config(family, tied, "model.dropout=0")
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    state = {name: whole(value).numpy() for name, value in model.state_dict().items()}
    passes = 8 // (world_size * config.training.micro_batch_size)
    for part in tokens_of(2).chunk(world_size)[rank].chunk(passes):
        torch.autograd.backward(loss_of(model, part) / passes)
    gradients = {name: whole(value.grad).numpy() for name, value in model.named_parameters() if value.grad is not None}
    return {"state": state, "gradients": gradients}


def _bfloat16(world_size: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    model = build(model_config("llama", False, "model.dtype=bfloat16"), CPU, init_device_mesh("cpu", (world_size,)))
    tokens = tokens_of(3)
    loss = loss_of(model, tokens)
    torch.autograd.backward(loss)
    stored = [*model.parameters(), *(value.grad for value in model.parameters() if value.grad is not None)]
    return {
        "stored": {str(value.dtype) for value in stored},
        "loss": (str(loss.dtype), loss.item()),
        "logits": str(model(input_ids=tokens).logits.dtype),
    }


def _everything(rank: int, world_size: int) -> dict[Any, dict[str, Any]]:
    results: dict[Any, dict[str, Any]] = {variant: _state_and_loss(rank, world_size, *variant) for variant in VARIANTS}
    return results | {"bfloat16": _bfloat16(world_size)}


@cache
def spread(world_size: int) -> list[dict[Any, dict[str, Any]]]:
    """What each rank found: for every variant of family and tied embeddings, and for bfloat16. One start for all."""
    return run_ranks(_everything, world_size)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_weights_are_the_same_at_any_world_size_and_without_sharding(family: str, tied: bool, world_size: int) -> None:
    alone = build(model_config(family, tied), CPU).state_dict()
    for rank in range(world_size):
        state = spread(world_size)[rank][family, tied]["state"]
        assert state.keys() == alone.keys()
        assert all(torch.from_numpy(state[name]).equal(value) for name, value in alone.items())


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_accumulated_gradients_of_all_ranks_equal_those_of_one_big_batch(
    family: str, tied: bool, world_size: int
) -> None:
    alone = build(model_config(family, tied, "model.dropout=0"), CPU)
    torch.autograd.backward(loss_of(alone, tokens_of(2)))
    expected = {name: value.grad for name, value in alone.named_parameters()}
    for rank in range(world_size):
        gradients = spread(world_size)[rank][family, tied]["gradients"]
        assert gradients.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(torch.from_numpy(gradients[name]), value, rtol=1e-4, atol=1e-5, msg=name)


def test_bfloat16_is_for_computing_only_weights_gradients_and_loss_are_float32() -> None:
    for result in (found["bfloat16"] for found in spread(2)):
        assert result["logits"] == "torch.bfloat16"
        assert result["loss"] == ("torch.float32", pytest.approx(5.55, abs=0.1))
        assert result["stored"] == {"torch.float32"}
