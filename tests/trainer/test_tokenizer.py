"""Tokens from a Hugging Face tokenizer, made here so that no network is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import ConfigError, RunConfig
from tests.trainer.conftest import configured
from tests.trainer.prepared_data import lines, made
from trainer.data import open_dataset
from trainer.data.tokenizer import Bytes, load, token_type

WORDS = ["<end>", "<unknown>", "the", "job", "goes", "on"]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizers") / "words"
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    from_backend: Any = PreTrainedTokenizerFast
    tokenizer = from_backend(tokenizer_object=backend, eos_token="<end>", unk_token="<unknown>")
    tokenizer.save_pretrained(folder)
    return folder


def test_each_file_becomes_tokens_that_end_with_the_end_token(tokenizer_folder: Path) -> None:
    tokenizer = load("words", tokenizer_folder.parent)
    chunks = [b"the job go", b"es on\nthe ", b"job"]
    ids = [WORDS[index] for piece in tokenizer.encode(chunks) for index in piece.tolist()]
    assert ids == ["the", "job", "goes", "on", "the", "job", "<end>"]
    assert tokenizer.vocabulary == len(WORDS)


def test_a_character_that_lies_across_two_reads_is_not_broken(tokenizer_folder: Path) -> None:
    tokenizer = load("words", tokenizer_folder.parent)
    text = "ü the".encode()
    assert [piece.tolist() for piece in tokenizer.encode([text[:1], text[1:]])] == [[1, 2], [0]]


def test_the_identity_follows_the_rules_not_the_place(tokenizer_folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(tokenizer_folder, tmp_path / "moved"))
    identity = load(str(tokenizer_folder), tmp_path).identity
    assert load("moved", tmp_path).identity == identity
    rules = json.loads((moved / "tokenizer.json").read_text())
    rules["model"]["vocab"]["stops"] = rules["model"]["vocab"].pop("goes")
    (moved / "tokenizer.json").write_text(json.dumps(rules))
    assert load("moved", tmp_path).identity != identity


def test_a_vocabulary_larger_than_the_models_is_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the job goes on\n" * 100)
    few = ["data.path=[text]", f"data.tokenizer={tokenizer_folder}", "model.vocab_size=5", "data.sequence_length=8"]
    with pytest.raises(ConfigError, match=r"model\.vocab_size = 5: .* has token ids up to 5\. Use at least 6"):
        open_dataset(configured(*few), tmp_path, tmp_path / "cache")
    few[2] = "model.vocab_size=6"
    assert open_dataset(configured(*few), tmp_path, tmp_path / "cache").tokens == 401
    few[2] = "model.vocab_size=5"  # now the token file is there, and the tokenizer is not loaded
    with pytest.raises(ConfigError, match=r"model\.vocab_size = 5"):
        open_dataset(configured(*few), tmp_path, tmp_path / "cache")


def test_a_tokenizer_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hollow").mkdir()
    with pytest.raises(ConfigError, match=r"data\.tokenizer = 'hollow': it cannot be loaded \(.+\)"):
        load("hollow", tmp_path)


def test_token_files_use_the_smallest_type_that_fits() -> None:
    assert [token_type(size).name for size in (Bytes.vocabulary, 257, 65536, 65537)] == [
        "uint8",
        "uint16",
        "uint16",
        "uint32",
    ]


# --- prepared ahead ---


def words_config(tokenizer: Path | str, vocabulary: int = 6) -> RunConfig:
    sets = [f"data.tokenizer={tokenizer}", f"model.vocab_size={vocabulary}", "data.sequence_length=8"]
    return configured("data.path=[tokens]", "data.limit_mib=null", *sets)


def test_prepared_documents_end_with_the_end_token_and_are_trained_on_without_the_tokenizer(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(["the job", "goes on the job ü"] * 20))
    result = made(tmp_path / "in.jsonl", tmp_path / "tokens", tokenizer=str(tokenizer_folder), workers=2)
    assert (result["tokens"], result["documents"]) == (20 * (3 + 6), 40)
    monkeypatch.setattr("trainer.data.tokenizer._from_hugging_face", lambda *_: pytest.fail("it was loaded"))
    dataset = open_dataset(words_config(tokenizer_folder), tmp_path, tmp_path / "cache")
    stream = dataset._parts[0].stream
    assert [WORDS[index] for index in stream.read(0, 9).tolist()] == [
        "the", "job", "<end>", "goes", "on", "the", "job", "<unknown>", "<end>",
    ]  # fmt: skip
    assert stream.ends(0, 18).tolist() == [3, 9, 12]
    assert stream.read(0, 9).dtype.name == "uint8"


def test_prepared_tokens_are_compared_with_the_model_and_with_a_tokenizer_of_another_name(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(["the job goes on"] * 40))
    made(tmp_path / "in.jsonl", tmp_path / "tokens", tokenizer=str(tokenizer_folder))
    with pytest.raises(ConfigError, match=r"model\.vocab_size = 5: .* has token ids up to 5\. Use at least 6"):
        open_dataset(words_config(tokenizer_folder, 5), tmp_path, tmp_path / "cache")
    moved = Path(shutil.copytree(tokenizer_folder, tmp_path / "moved"))
    assert open_dataset(words_config("moved"), tmp_path, tmp_path / "cache").tokens == 200
    rules = json.loads((moved / "tokenizer.json").read_text())
    rules["model"]["vocab"]["stops"] = rules["model"]["vocab"].pop("goes")
    (moved / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(ConfigError, match=r"data\.tokenizer = 'moved': data\.path names tokens, which was prepared"):
        open_dataset(words_config("moved"), tmp_path, tmp_path / "cache")
