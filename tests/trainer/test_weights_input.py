"""A folder that no model can start from is refused in one message that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.config import ConfigError, load_profile
from holdfast.run_directory import RunDirectory
from tests.trainer.model_folders import config_folder_of, folder_of, random_from, sets_of, trained_from
from tests.trainer.test_model import CPU
from tests.trainer.test_weights import loaded
from trainer.model import build
from trainer.model_folder import keep, read_settings, settled

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in found.items() if value != "gone"}))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / ONE)
    change(tensors)
    save_file(tensors, folder / ONE)


def refused(folder: Path, sets: list[str]) -> str:
    """The message; whatever is wrong is one problem of one key."""
    with pytest.raises(ConfigError) as error:
        loaded(settled(load_profile("cpu-test", sets), Path("/"), RunDirectory(folder.parent / "run")))
    assert len(error.value.problems) == 1
    assert error.value.problems[0].key in ("model.weights", "model.family", "model.parameters")
    return str(error.value)


def no_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def only_a_file(folder: Path) -> None:
    no_folder(folder)
    folder.write_text("")


def cut_off(folder: Path) -> None:
    with open(folder / ONE, "r+b") as file:
        file.truncate((folder / ONE).stat().st_size - 1000)


def cut_off_in_the_header(folder: Path) -> None:
    with open(folder / ONE, "r+b") as file:
        file.truncate(5)


def a_pickle(folder: Path) -> None:
    (folder / ONE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")


def an_adapter(folder: Path) -> None:
    (folder / ONE).rename(folder / "adapter_model.safetensors")


def a_number_that_is_none(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))


def an_integer_type(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))


def several_things(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(3):
            del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
        del tensors["lm_head.weight"]
        tensors["model.norm.weight"] = torch.ones(63)
        tensors["model.norm.bias"] = torch.ones(64)

    rewrite(folder, change)


CASES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no folder": (
        no_folder,
        ("model.weights = ", "there is no such folder on this node", "hf download", "HF_TOKEN", "Secret"),
    ),
    "a file": (only_a_file, ("it is a file", "Name the folder")),
    "no config.json": (
        lambda folder: (folder / "config.json").unlink(),
        ("it holds no config.json; there is ", "model.safetensors", "save_pretrained"),
    ),
    "config.json that is not JSON": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "lla'),
        ("config.json is not JSON (", "line 1", "Download or copy it again"),
    ),
    "config.json that is a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        ("names no model_type",),
    ),
    "an unknown model_type": (
        lambda folder: edit(folder, model_type="llama9"),
        ("model.family = 'llama'", "says model_type='llama9'", "Write model.family: other"),
    ),
    "another known family": (
        lambda folder: edit(folder, model_type="mistral"),
        ("model.family = 'llama'", "says model_type='mistral'", "Write model.family: mistral"),
    ),
    "a value that the family refuses": (
        lambda folder: edit(folder, rms_norm_eps="small"),
        ("transformers refuses config.json of ", "rms_norm_eps", "Correct config.json"),
    ),
    "a model that cannot be built": (
        lambda folder: edit(folder, hidden_act="no such function"),
        ("transformers cannot build what config.json of ", "describes", "Correct config.json"),
    ),
    "quantized weights": (
        lambda folder: edit(folder, quantization_config={"bits": 4}),
        ("its weights are quantized", "Use the unquantized model"),
    ),
    "another number of parameters": (
        lambda folder: edit(folder, attention_bias=True),
        ("model.parameters = ", "describes a model of 125952 parameters", "gives 125376", "Write 125952"),
    ),
    "no weights": (
        lambda folder: (folder / ONE).unlink(),
        ("it holds neither model.safetensors nor model.safetensors.index.json", "model.config"),
    ),
    "a pickle": (a_pickle, ("its weights are pickles (pytorch_model.bin)", "any code", "save_pretrained(NEW_FOLDER)")),
    "an adapter": (an_adapter, ("an adapter, not the weights of a model", "merge_and_unload")),
    "a truncated file": (cut_off, ("model.safetensors is cut off or damaged (", "Download or copy the folder again")),
    "a truncated header": (cut_off_in_the_header, ("model.safetensors is cut off or damaged (",)),
    "values that are no numbers": (
        a_number_that_is_none,
        ("tensors with values that are no finite numbers (1): model.norm.weight", "Download"),
    ),
    "a type that is not trained": (an_integer_type, ("model.norm.weight is of type I8", "BF16")),
    "tensors that do not fit": (
        several_things,
        (
            "tensors missing (4): model.layers.0.mlp.up_proj.weight, model.layers.1.mlp.up_proj.weight, ",
            " and 1 more; ",
            "tensors not of this model (1): model.norm.bias",
            "tensors of another kind (1): model.norm.weight has the shape [63] and should have [64]",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_is_refused_in_one_message_with_what_to_do(case: str, tmp_path: Path) -> None:
    spoil, words = CASES[case]
    folder = folder_of("llama", tmp_path / "model")
    sets = sets_of(folder)
    spoil(folder)
    message = refused(folder, sets)
    for word in words:
        assert word in message, message


def lost_shard(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[1].unlink()


def torn_index(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": ')


def index_out_of_the_folder(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "../model.safetensors"}}))


def index_of_another_model(folder: Path) -> None:
    found = json.loads((folder / INDEX).read_text())
    found["weight_map"]["model.layers.3.mlp.up_proj.weight"] = sorted(set(found["weight_map"].values()))[0]
    (folder / INDEX).write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lost_shard, "1 of them are not there: model-00002-of-"),
        (torn_index, f"{INDEX} is not a list of tensors and their files"),
        (index_out_of_the_folder, f"{INDEX} is not a list of tensors and their files"),
        (index_of_another_model, f"{INDEX} lists model.layers.3.mlp.up_proj.weight in model-00001-of-"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(
    spoil: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    folder = folder_of("llama", tmp_path / "model", shard="60KB")
    sets = sets_of(folder)
    spoil(folder)
    message = refused(folder, sets)
    assert words in message
    assert "Download or copy the folder again" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama9"}, "knows no model_type='llama9'"),
        ({"model_type": "llama9", "auto_map": {"AutoModelForCausalLM": "m.M"}}, "code that comes with the model"),
        ({"model_type": "t5"}, "has no causal language model of model_type=t5"),
        ({"model_type": "llama"}, "Write model.family: llama"),
    ],
)
def test_another_family_must_be_one_that_transformers_has_code_for(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = folder_of("gemma2", tmp_path / "model")
    sets = sets_of(folder)
    edit(folder, **changes)
    if changes["model_type"] == "t5":
        edit(folder, d_model=64, num_layers=3, num_heads=4, tie_word_embeddings=True, hidden_size="gone")
    assert words in refused(folder, sets)


def test_a_folder_that_may_not_be_read_is_refused_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path / "model")

    def refuse(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # as for another user than root, whom nothing is refused
    with pytest.raises(
        ConfigError, match=rf"model\.weights = '{folder}': {folder}.* cannot be read: Permission denied"
    ):
        read_settings(folder, "model.weights", load_profile("cpu-test"))


def test_every_key_that_differs_is_named_with_what_to_write(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "model")
    with pytest.raises(ConfigError) as error:
        build(trained_from(folder, "model.layers=4", "model.vocab_size=512", "model.rope_theta=1000"), CPU)
    assert [(problem.key, problem.got, problem.fix) for problem in error.value.problems] == [
        ("model.vocab_size", 512, "write 256"),
        ("model.layers", 4, "write 3"),
        ("model.rope_theta", 1000.0, "write 500000.0"),
    ]
    assert f"config.json of {folder} says 3" in str(error.value)


def test_the_number_of_parameters_of_another_family_must_be_the_real_one(tmp_path: Path) -> None:
    folder = config_folder_of("olmo2", tmp_path / "model")
    real = sum(parameter.numel() for parameter in build(random_from(folder), CPU).parameters())
    with pytest.raises(ConfigError, match=rf"model.parameters = '{real - 1}': .*Write {real}\."):
        build(random_from(folder, f"model.parameters={real - 1}"), CPU)


def test_a_window_and_document_masks_do_not_go_together(tmp_path: Path) -> None:
    folder = folder_of("mistral", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"data\.document_masks = True: config\.json has a sliding window of 16"):
        build(trained_from(folder, "data.document_masks=true"), CPU)
    build(trained_from(folder, "data.document_masks=true", "data.sequence_length=16"), CPU)


def test_settings_by_hand_add_to_the_keys() -> None:
    model = build(load_profile("cpu-test", ["model.settings={rms_norm_eps: 0.25, head_dim: 16}"]), CPU)
    assert model.get_submodule("model.norm").variance_epsilon == 0.25


def test_settings_beside_a_folder_are_refused_unless_they_are_its_own(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"model.settings = .*has a config.json, and that counts. Leave it out"):
        trained_from(folder, "model.settings={rms_norm_eps: 0.25}")


def test_a_folder_below_the_shared_storage_is_found_where_that_is_mounted_here(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "models" / "mine")
    sets = sets_of(folder, "model.weights=/fsx/models/mine")
    config = settled(load_profile("cpu-test", sets), tmp_path, RunDirectory(tmp_path / "run"))
    assert config.model.settings is not None
    assert config.model.settings["rms_norm_eps"] == 1e-3


def test_a_run_that_has_begun_outlives_its_folder(tmp_path: Path) -> None:
    folder, run = folder_of("llama", tmp_path / "model"), RunDirectory(tmp_path / "run")
    raw = load_profile("cpu-test", sets_of(folder))
    begun = settled(raw, Path("/"), run)
    run.path.mkdir()
    keep(begun, run)
    no_folder(folder)
    assert settled(raw, Path("/"), run) == begun
