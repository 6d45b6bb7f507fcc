"""The formulas that sizes come from agree with the modules that transformers builds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import load_profile, sizing
from holdfast.config.schema import Model, Storage

MODELS = [
    Model(family="llama", hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2),
    Model(family="llama", hidden_size=64, intermediate_size=176, layers=3, heads=8, kv_heads=8, tie_embeddings=True),
    Model(family="llama", hidden_size=96, intermediate_size=100, layers=1, heads=6, kv_heads=1, vocab_size=1000),
    Model(family="qwen2", hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2),
    Model(family="qwen2", hidden_size=128, intermediate_size=256, layers=2, heads=4, kv_heads=4, tie_embeddings=True),
    Model(family="mistral", hidden_size=64, intermediate_size=224, layers=2, heads=4, kv_heads=1),
    Model(family="gpt2", hidden_size=48, intermediate_size=192, layers=2, heads=4, kv_heads=4, tie_embeddings=True),
    Model(family="gpt2", hidden_size=48, intermediate_size=100, layers=3, heads=4, kv_heads=4, max_positions=99),
]


def hugging_face(model: Model) -> dict[str, Any]:
    """Our fields under the names of transformers' config of that family."""
    if model.family == "gpt2":
        names = {"n_embd": model.hidden_size, "n_inner": model.intermediate_size, "n_layer": model.layers}
        names |= {"n_head": model.heads, "n_positions": model.max_positions}
    else:
        names = {"hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size}
        names |= {"num_hidden_layers": model.layers, "num_attention_heads": model.heads}
        names |= {"num_key_value_heads": model.kv_heads, "max_position_embeddings": model.max_positions}
    return {**names, "vocab_size": model.vocab_size, "tie_word_embeddings": model.tie_embeddings}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.family}-{m.kv_heads}of{m.heads}-tied={m.tie_embeddings}")
def test_the_number_of_parameters_is_that_of_the_real_module(model: Model) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model.family, **hugging_face(model))
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    module.tie_weights()
    assert sizing.parameters(model) == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("profile, published", [("llama3-8b-p5x2", 8_030_261_248), ("gpt2-g5x2", 124_439_808)])
def test_well_known_models_have_their_published_size(profile: str, published: int) -> None:
    assert sizing.parameters(load_profile(profile).model) == published


def test_a_checkpoint_is_weights_and_two_moments_in_float32() -> None:
    config = load_profile("llama3-8b-p5x2")
    assert sizing.checkpoint_bytes(config) == 8_030_261_248 * 12
    assert sizing.staging_bytes_per_node(config) == 8_030_261_248 * 6


def test_a_local_tier_stages_a_second_copy_and_keeps_own_and_neighbours_parts() -> None:
    one = 8_030_261_248 * 6
    disk = load_profile("llama3-8b-p5x2", ["checkpoint.local.interval_steps=100"])
    assert sizing.staging_bytes_per_node(disk) == sizing.shared_memory_bytes_per_node(disk) == 2 * one
    assert sizing.local_tier_bytes_per_node(disk) == (2 + 1) * 2 * one
    alone = load_profile("llama3-8b-p5x2", ["checkpoint.local={interval_steps: 100, replicate: false, keep_last: 1}"])
    assert sizing.local_tier_bytes_per_node(alone) == (1 + 1) * one
    assert sizing.local_tier_bytes_per_node(load_profile("llama3-8b-p5x2")) == 0
    memory = load_profile("gpt2-g5x2", ["checkpoint.local={interval_steps: 10, path: /dev/shm/local}"])
    half = 124_439_808 * 6
    assert sizing.shared_memory_bytes_per_node(memory) == 2 * half + 6 * half


def test_the_copies_of_all_nodes_hold_the_whole_checkpoint() -> None:
    config = load_profile("cpu-test", ["cluster.nodes=3", "training.global_batch_size=12"])
    assert 0 <= 3 * sizing.staging_bytes_per_node(config) - sizing.checkpoint_bytes(config) < 3


def test_kept_checkpoints_count_the_newest_the_eternal_and_the_one_in_flight() -> None:
    few = load_profile("cpu-test", ["checkpoint.keep_last=4"])
    assert sizing.kept_checkpoints(few) == 5
    assert sizing.kept_checkpoints(load_profile("cpu-test", ["checkpoint.keep_every_steps=10"])) == 2 + 1 + 2


@pytest.mark.parametrize(
    "storage, mb_per_s",
    [
        (Storage(capacity_gib=1200), 234.375),
        (Storage(deployment_type="PERSISTENT_2", capacity_gib=4800, throughput_mbps_per_tib=1000), 4687.5),
    ],
)
def test_throughput_follows_from_size_and_type(storage: Storage, mb_per_s: float) -> None:
    assert sizing.storage_bytes_per_s(storage) == mb_per_s * 1e6
