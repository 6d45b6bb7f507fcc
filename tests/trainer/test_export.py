"""Exported weights are the trained ones: `from_pretrained` gives the same logits, bit for bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.config import names
from tests.trainer.exports import CPU, commit, exported, logits_of, saved, stored_names
from tests.trainer.gloo import run_ranks
from tests.trainer.model_folders import CONFIGS, config_folder_of, random_from
from tests.trainer.test_model import VARIANTS, model_config, tokens_of
from trainer.checkpoint.plan import nested
from trainer.checkpoint.state import live_tensors, prepare_optimizer
from trainer.model import build
from trainer.optimizer import build_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# --- the weights ---


@dataclass(frozen=True)
class Variant:
    """A trained model, tied or not, and what was exported of it."""

    tied: bool
    model: torch.nn.Module
    folder: Path
    result: dict[str, Any]


@pytest.fixture(
    scope="module", params=VARIANTS, ids=lambda variant: f"{variant[0]}-{'tied' if variant[1] else 'untied'}"
)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Variant:
    family, tied = request.param
    place = tmp_path_factory.mktemp(family)
    model, folder = saved(place, model_config(family, tied))
    return Variant(tied, model, place / "hf", exported(folder, place / "hf"))


def test_from_pretrained_gives_the_logits_of_the_trained_model_bit_for_bit(variant: Variant) -> None:
    with torch.no_grad():
        expected = variant.model(input_ids=tokens_of(1)).logits
    assert logits_of(variant.folder).equal(expected)


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_config_json_of_the_run_said_is_in_the_exported_one(kind: str, tmp_path: Path) -> None:
    model, folder = saved(tmp_path, random_from(config_folder_of(kind, tmp_path / "described")))
    exported(folder, tmp_path / "hf")
    with torch.no_grad():
        assert logits_of(tmp_path / "hf").equal(model(input_ids=tokens_of(1)).logits)
    before, after = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("described", "hf"))
    ours = {"architectures", "dtype", "transformers_version"} | {key for key in before if "drop" in key}
    assert {key: value for key, value in after.items() if key not in ours} == {
        key: value for key, value in before.items() if key not in ours
    }


def test_each_weight_is_written_once(variant: Variant) -> None:
    stored = stored_names(variant.folder)
    assert sorted(stored) == sorted(name for name, _ in variant.model.named_parameters())
    assert ("lm_head.weight" in stored) is not variant.tied
    assert variant.result["parameters"] == sum(parameter.numel() for parameter in variant.model.parameters())


def test_shards_and_their_index_cover_every_weight(tmp_path: Path) -> None:
    model, folder = saved(tmp_path, model_config("llama"))
    result = exported(folder, tmp_path / "hf", shard_bytes=100_000)
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert result["shards"] == len(files) > 3
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(stored_names(tmp_path / "hf"))
    assert sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == result["bytes"] == 4 * result["parameters"]
    with torch.no_grad():
        assert logits_of(tmp_path / "hf").equal(model(input_ids=tokens_of(1)).logits)


def test_bfloat16_rounds_each_weight_and_says_so_in_the_config(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, folder = saved(tmp_path, model_config("qwen2"))
    exported(folder, tmp_path / "hf", torch.bfloat16)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", local_files_only=True)
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.equal(model.get_parameter(name).bfloat16()), name


def save_sharded(rank: int, world_size: int, storage: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    config = model_config("llama", False, f"cluster.nodes={world_size}", "training.global_batch_size=8")
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    optimizer = build_optimizer(model, config)
    prepare_optimizer(model, optimizer)
    folder = Path(storage) / "runs" / "test" / names.CHECKPOINTS / names.step_folder(30)
    dcp.save(nested(live_tensors(model, optimizer)), checkpoint_id=folder)
    if rank == 0:
        commit(folder, config)


def test_what_two_ranks_saved_in_parts_is_exported_whole(tmp_path: Path) -> None:
    run_ranks(save_sharded, 2, str(tmp_path))
    exported(tmp_path / "runs" / "test" / names.CHECKPOINTS / names.step_folder(30), tmp_path / "hf")
    with torch.no_grad():
        expected = build(model_config("llama"), CPU).eval()(input_ids=tokens_of(1)).logits
    assert logits_of(tmp_path / "hf").equal(expected)


def test_batches_of_any_size_give_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    exported(folder, tmp_path / "at once")
    monkeypatch.setattr("trainer.checkpoint.export.BATCH_BYTES", 1)
    exported(folder, tmp_path / "one by one")
    first, second = (tmp_path / name / "model.safetensors" for name in ("at once", "one by one"))
    assert first.read_bytes() == second.read_bytes()


# --- what lies beside them ---


def test_the_config_names_the_class_and_lets_generation_use_its_cache(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, model_config("mistral"))
    result = exported(folder, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["MistralForCausalLM"], "float32")
    assert config["use_cache"] is True
    assert (tmp_path / "hf" / "generation_config.json").exists()
    modes = {path.stat().st_mode for path in (tmp_path / "hf").iterdir()}
    assert len(modes) == 1, "who may read the config may read the weights"
    assert result["notes"] == ["tokenizer: none is needed; the run was trained on bytes, token ids are byte values"]


def tokenizer_folder(folder: Path) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(WordLevel({"<end>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=backend, eos_token="<end>", unk_token="?").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["tokenizers/words", "/fsx/tokenizers/words"])
def test_a_tokenizer_on_the_shared_storage_comes_along_and_ends_generation(tmp_path: Path, name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer_folder(tmp_path / "tokenizers" / "words")
    _, folder = saved(tmp_path, model_config("llama", False, f"data.tokenizer={name}"))
    result = exported(folder, tmp_path / "hf")
    assert result["notes"] == [f"tokenizer: copied from {tmp_path / 'tokenizers' / 'words'}"]
    assert AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)("a")["input_ids"] == [1]
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"] == 0


def test_a_tokenizer_that_is_not_here_is_said_and_does_not_stop_the_export(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, model_config("llama", False, "data.tokenizer=someone/words"))
    result = exported(folder, tmp_path / "hf")
    assert "data.tokenizer = 'someone/words' is not on this machine" in result["notes"][0]
    assert (tmp_path / "hf" / "model.safetensors").exists()
