"""A model that starts from a Hugging Face folder is the one that transformers' own from_pretrained makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from holdfast.config import RunConfig
from tests.trainer.model_folders import (
    CONFIGS,
    OTHERS,
    config_folder_of,
    folder_of,
    model_of,
    random_from,
    reference_logits,
    trained_from,
)
from tests.trainer.test_model import CPU, tokens_of
from trainer.architecture import keys_of, main
from trainer.model import build, loss_of
from trainer.parallel import blocks
from trainer.weights import open_weights
from trainer.weights_load import load, matched


def loaded(config: RunConfig) -> torch.nn.Module:
    """The model of a run as it is before its first step."""
    assert config.model.weights is not None
    model = build(config, CPU)
    weights = open_weights(Path(config.model.weights))
    load(model, weights, matched(model, weights))
    return model


# --- the same model ---


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_and_loss_equal_those_of_from_pretrained_bit_for_bit(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "model")
    tokens = tokens_of(1)
    expected = reference_logits(folder, tokens[:, :-1])
    model = loaded(trained_from(folder)).eval()
    with torch.no_grad():
        assert model(input_ids=tokens[:, :-1]).logits.equal(expected)
        by_hand = -expected.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()
        assert loss_of(model, tokens).item() == pytest.approx(by_hand.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 500000.0}),
        ("llama", "rms_norm_eps", 1e-6),
        ("gpt2", "layer_norm_epsilon", 1e-6),
        ("gpt2", "activation_function", "gelu_new"),
        ("mistral", "sliding_window", None),
        ("mistral", "hidden_act", "silu"),
    ],
)
def test_what_config_json_alone_says_decides_about_the_logits(
    kind: str, setting: str, value: object, tmp_path: Path
) -> None:
    folder = folder_of(kind, tmp_path / "model")
    expected = reference_logits(folder, tokens_of(1)[:, :-1])
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: value}))
    with torch.no_grad():
        other = loaded(trained_from(folder)).eval()(input_ids=tokens_of(1)[:, :-1]).logits
    assert not torch.allclose(other, expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_weights_in_several_files_of_16_bits_become_float32_masters(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "model", dtype=torch.bfloat16, shard="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    model = loaded(trained_from(folder))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        assert model.eval()(input_ids=tokens_of(2)).logits.equal(reference_logits(folder, tokens_of(2)))


def test_a_tied_output_layer_that_the_file_holds_too_is_no_surplus(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = folder_of("gemma2", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors.pop("model.embed_tokens.weight")
    for names in (("lm_head.weight",), ("lm_head.weight", "model.embed_tokens.weight")):
        save_file(tensors | {name: embedding.clone() for name in names}, folder / "model.safetensors")
        model = loaded(trained_from(folder))
        assert model.get_parameter("model.embed_tokens.weight").equal(embedding)
        assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")


def test_buffers_that_older_versions_saved_are_no_surplus(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for kind, buffer in (("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"), ("gpt2", "h.0.attn.bias")):
        folder = folder_of(kind, tmp_path / kind)
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {buffer: torch.zeros(8)}, folder / "model.safetensors")
        loaded(trained_from(folder))


def test_any_other_header_or_config_gives_the_weights_another_identity(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "model")
    first = open_weights(folder).identity
    assert open_weights(folder).identity == first
    assert open_weights(folder_of("llama", tmp_path / "copy")).identity == first
    changed = folder_of("llama", tmp_path / "other", rms_norm_eps=1e-4)
    narrow = folder_of("llama", tmp_path / "narrow", intermediate_size=80)
    assert len({first, open_weights(changed).identity, open_weights(narrow).identity}) == 3


# --- families that Holdfast has no formula for ---


@pytest.mark.parametrize("kind", OTHERS)
def test_random_values_of_another_family_are_drawn_as_the_family_does(kind: str, tmp_path: Path) -> None:
    wider = {"vocab_size": 2000} if kind != "gpt_neo" else {"vocab_size": 2000, "initializer_range": 0.1}
    folder = config_folder_of(kind, tmp_path / "model", **wider)
    ours = dict(build(random_from(folder), CPU).named_parameters())
    theirs = dict(model_of(kind, noise=0.0, **wider).named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(theirs[name].std().item(), rel=0.1), name
            assert parameter.mean().item() == pytest.approx(0, abs=0.02), name
        else:
            assert parameter.equal(theirs[name]), name


def test_norms_that_count_from_zero_begin_at_zero(tmp_path: Path) -> None:
    model = build(random_from(config_folder_of("gemma2", tmp_path / "model")), CPU)
    assert model.get_parameter("model.norm.weight").eq(0).all()


@pytest.mark.parametrize("kind", OTHERS)
def test_another_family_has_its_blocks_and_its_seeds(kind: str, tmp_path: Path) -> None:
    folder = config_folder_of(kind, tmp_path / "model")
    first, again, other = (build(random_from(folder, f"seed={seed}"), CPU) for seed in (1, 1, 2))
    assert len(blocks(first)) == first.config.num_hidden_layers  # type: ignore[union-attr]
    assert all(a.equal(b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    matrices = [parameter for parameter in first.parameters() if parameter.ndim > 1]
    assert len({tuple(parameter.flatten()[:4].tolist()) for parameter in matrices}) == len(matrices)
    assert not first.get_input_embeddings().weight.equal(other.get_input_embeddings().weight)  # type: ignore[operator]


def test_the_log_says_once_how_another_family_is_cut_into_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    build(random_from(config_folder_of("gpt_neo", tmp_path / "model")), CPU)
    found = [record.getMessage() for record in caplog.records if record.name == "trainer.model"]
    assert found == ["model_type=gpt_neo: 2 blocks (GPTNeoBlock), the members of transformer.h, its largest ModuleList"]


@pytest.mark.parametrize("training", ["training.activation_checkpointing=full", "training.compile=false"])
def test_another_family_learns(training: str, tmp_path: Path) -> None:
    model = build(random_from(config_folder_of("gemma2", tmp_path / "model"), training), CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = loss_of(model, tokens_of(5, samples=2))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


# --- the keys of a folder ---


def test_the_printed_section_is_what_a_config_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of("gemma2", tmp_path / "model")
    assert main([str(folder)]) == 0
    printed = capsys.readouterr().out
    import yaml

    section = yaml.safe_load(printed)["model"]
    assert section == keys_of(folder)
    assert (section["family"], section["layers"], section["kv_heads"]) == ("other", 3, 2)
    assert section["parameters"] == sum(parameter.numel() for parameter in model_of("gemma2").parameters())


def test_a_folder_that_describes_no_model_prints_no_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "it holds no config.json" in capsys.readouterr().err
    assert main([]) == 2
