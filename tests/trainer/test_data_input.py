"""Bad input of preparations and of training data: one message with the place, the reason and what to do."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.config import ConfigError
from tests.trainer.prepared_data import corpus, documents, lines, made
from tests.trainer.test_data import small
from tests.trainer.test_data_prepare import packed, texts
from trainer.data import open_dataset
from trainer.data.prepare import inputs, pieces
from trainer.data.prepared import MANIFEST


def refused(folder: Path, name: str, data: bytes) -> str:
    """What is said about a file with this content."""
    (folder / name).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        texts(pieces.cut(inputs.find(name, folder).files, smallest=64))
    (problem,) = caught.value.problems
    assert problem.key == "source" and str(problem.got).endswith(name) and problem.fix
    return str(problem)


# --- text that is not UTF-8 ---


@pytest.mark.parametrize("before", [0, 5, (1 << 20) - 1, (1 << 20) + 3])
def test_text_that_is_not_utf8_is_refused_with_its_byte(tmp_path: Path, before: int) -> None:
    said = refused(tmp_path, "a.txt", b"x" * before + "gr\xfc\xdfe".encode("latin-1"))
    assert f"it is not UTF-8 text: see byte {before + 2}. Convert it (iconv" in said


def test_a_character_across_two_reads_is_text_and_half_a_one_at_the_end_is_not(tmp_path: Path) -> None:
    text = ("x" * ((1 << 20) - 1) + "ü").encode()
    (tmp_path / "a.txt").write_bytes(text)
    assert "".join(texts(pieces.cut(inputs.find("a.txt", tmp_path).files))).encode() == text
    assert f"see byte {(1 << 20) - 1}." in refused(tmp_path, "b.txt", text[:-1])


def test_training_on_text_that_is_not_utf8_is_refused_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"0123456789" * 20 + b"\xff")
    with pytest.raises(ConfigError, match=r"data\.path = '.*text': it is not UTF-8 text: see byte 200"):
        open_dataset(small("text"), tmp_path, tmp_path / "cache")
    (tmp_path / "text").write_bytes("ü".encode() * 400)
    odd = small("text", 4, f"data.limit_mib={301 / 2**20}")  # the limit may cut a character
    assert open_dataset(odd, tmp_path, tmp_path / "cache").tokens == 301


def test_json_lines_that_are_not_utf8_are_refused_with_their_byte(tmp_path: Path) -> None:
    first = lines(documents(30))
    bad = b'{"text": "gr\xfc\xdfe"}\n'
    assert f"see byte {len(first) + 12}." in refused(tmp_path, "a.jsonl", first + bad)
    said = refused(tmp_path, "a.jsonl.gz", gzip.compress(first + bad))
    assert f"see byte {len(first) + 12} of what it holds uncompressed." in said


# --- JSON lines ---


@pytest.mark.parametrize(
    "line, why",
    [
        (b'{"content": "x", "url": "y"}\n', "has the keys content, url, and not 'text'. Name the key of the text with"),
        (b'["x"]\n', "is no object, and not 'text'"),
        (b'{"text": 5}\n', "has int under 'text', and not text"),
        (b'{"text": "x"\n', "is not JSON (Expecting ',' delimiter"),
        (b'{"text": "\\ud800"}\n', "holds half of a surrogate pair"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_by_its_byte(tmp_path: Path, line: bytes, why: str) -> None:
    first = lines(documents(10))
    said = refused(tmp_path, "a.jsonl", first + line + first)
    assert f"its line from byte {len(first)} on {why}" in said


def test_a_file_of_json_lines_that_is_torn_is_said_to_be(tmp_path: Path) -> None:
    said = refused(tmp_path, "a.jsonl", lines(documents(10))[:-9])
    assert "is not JSON" in said and "the file is torn" in said


# --- files that are torn ---


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_a_packed_file_that_is_torn_or_not_packed_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    whole = packed(lines(documents(3000)), suffix)
    assert f"it is no whole {suffix} file (" in refused(tmp_path, f"a.{kind}{suffix}", whole[: len(whole) // 2])
    assert f"it is no whole {suffix} file (" in refused(tmp_path, f"b.{kind}{suffix}", b"plain text, and no more of it")


def test_parquet_that_is_torn_has_no_text_column_or_no_text_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = (corpus(tmp_path / "in") / "c.parquet").read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:3], whole[:-100] + b"\0" * 100):
        assert "it is no whole parquet file (" in refused(tmp_path, "a.parquet", torn)
    assert "it is no whole parquet file (" in refused(tmp_path, "b.parquet", whole[:10] + b"\xff" * 200 + whole[210:])
    for table, why in (
        (pa.table({"content": ["x"], "id": [1]}), "its columns are content, id, and not 'text'"),
        (pa.table({"text": [1]}), "its column 'text' has the type int64, and not string"),
    ):
        file = io.BytesIO()
        pq.write_table(table, file)
        assert why in refused(tmp_path, "c.parquet", file.getvalue())


# --- sources ---


@pytest.mark.parametrize(
    "source, pattern, why",
    [
        ("hollow", None, "source = 'hollow': .*hollow holds no text"),
        ("./absent", None, "source = './absent': .*absent does not exist"),
        ("in", "*.csv", r"--files = '\*\.csv': no file of in that holds data matches it"),
    ],
)
def test_a_source_without_data_is_refused(tmp_path: Path, source: str, pattern: str | None, why: str) -> None:
    (tmp_path / "hollow").mkdir()
    corpus(tmp_path / "in")
    with pytest.raises(ConfigError, match=why):
        inputs.find(source, tmp_path, pattern)


def test_a_source_whose_records_are_all_empty_is_refused_and_not_finished(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n' * 5)
    with pytest.raises(ConfigError, match="it holds no text: all its records are empty under 'text'"):
        made(tmp_path / "a.jsonl", tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_bad_input_in_a_worker_ends_the_preparation_with_its_message(tmp_path: Path) -> None:
    corpus(tmp_path / "in")
    (tmp_path / "in" / "z.jsonl").write_bytes(b'{"text": 5}\n')
    (tmp_path / "in" / "z.jsonl").write_bytes(lines(documents(40_000)) + b'{"text": 5}\n')  # behind the sample
    with pytest.raises(ConfigError, match=r"source = '.*z\.jsonl': its line from byte \d+ on has int under 'text'"):
        made(tmp_path / "in", tmp_path / "out", workers=2)


# --- tokens and the config that trains on them ---


def test_tokens_of_another_tokenizer_are_refused_with_the_one_they_were_made_with(tmp_path: Path) -> None:
    made(corpus(tmp_path / "in"), tmp_path / "out")
    asked = small("out", 4, "data.tokenizer=gpt2")
    with pytest.raises(ConfigError, match=r"data\.tokenizer = 'gpt2': .* prepared with .bytes.\. Write data"):
        open_dataset(asked, tmp_path, tmp_path / "cache")


def changed(folder: Path, change: str) -> None:
    """Make a prepared folder one of another tokenizer of the same name, or one with wider tokens."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if change == "identity":
        manifest["tokenizer"]["identity"] = "bytes-of-old"
    else:
        manifest["dtype"] = "uint16"
        for path in folder.glob("part-*.tokens"):
            np.fromfile(path, np.uint8).astype(np.uint16).tofile(path)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "change, said", [("identity", "uint8 tokens of bytes-of-old"), ("dtype", "uint16 tokens of b")]
)
def test_folders_whose_tokens_mean_different_things_are_not_joined(tmp_path: Path, change: str, said: str) -> None:
    for name in ("one", "two"):
        made(corpus(tmp_path / "in"), tmp_path / name)
    changed(tmp_path / "two", change)
    with pytest.raises(ConfigError, match=rf"data\.path = \['one', 'two'\]: one has uint8 tokens .*two has {said}"):
        open_dataset(small("one, two"), tmp_path, tmp_path / "cache")
    assert open_dataset(small("two"), tmp_path, tmp_path / "cache").tokens


@pytest.mark.parametrize("other", ["one", "in/a.jsonl"])
@pytest.mark.parametrize("place", ["mixture", "validation"])
def test_parts_whose_tokens_mean_different_things_are_not_mixed(tmp_path: Path, other: str, place: str) -> None:
    for name in ("one", "two"):
        made(corpus(tmp_path / "in"), tmp_path / name)
    changed(tmp_path / "two", "identity")
    key, config = "data.validation_path", small(other, 4, "data.validation_path=[two]")
    if place == "mixture":
        mixture = f"data.mixture=[{{path: {other}, weight: 1}}, {{path: two, weight: 1}}]"
        key, config = "data.mixture.1.path", small("", 4, "data.path=[]", mixture)
    with pytest.raises(ConfigError) as caught:
        open_dataset(config, tmp_path, tmp_path / "cache")
    (problem,) = caught.value.problems
    assert (problem.key, list(problem.got)) == (key, ["two"])
    assert "its tokens are of bytes-of-old, and those of data." in problem.why


def test_the_largest_vocabulary_of_joined_folders_is_held_against_the_model(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(corpus(tmp_path / "in"), tmp_path / name)
    manifest = tmp_path / "two" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"vocabulary": 256', '"vocabulary": 70000'))
    with pytest.raises(ConfigError, match=r"model\.vocab_size = .* has token ids up to 69999"):
        open_dataset(small("one, two"), tmp_path, tmp_path / "cache")


def test_prepared_and_plain_data_in_one_path_are_refused(tmp_path: Path) -> None:
    made(corpus(tmp_path / "in"), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"out is a prepared folder and in/a\.jsonl is not.*parts of data\.mixture"):
        open_dataset(small("out, in/a.jsonl"), tmp_path, tmp_path / "cache")


def test_a_limit_cuts_prepared_tokens_by_the_text_they_came_from(tmp_path: Path) -> None:
    tokens = made(corpus(tmp_path / "in"), tmp_path / "out")["tokens"]
    whole = open_dataset(small("out"), tmp_path, tmp_path / "cache")
    half = open_dataset(small("out", 4, f"data.limit_mib={tokens / 2 / 2**20}"), tmp_path, tmp_path / "cache")
    assert (whole.tokens, half.tokens) == (tokens, tokens // 2)
    assert whole.fingerprint != half.fingerprint


@pytest.mark.parametrize("damage", ["no JSON", "another version", "parts that do not add up", "a missing file"])
def test_a_damaged_prepared_folder_is_refused(tmp_path: Path, damage: str) -> None:
    made(corpus(tmp_path / "in"), tmp_path / "out")
    manifest = tmp_path / "out" / MANIFEST
    text = manifest.read_text()
    if damage == "a missing file":
        (tmp_path / "out" / "part-00002.ends").unlink()
    else:
        changed = {"no JSON": text[:50], "another version": text.replace('"schema": 1', '"schema": 2')}
        manifest.write_text(changed.get(damage) or text.replace('"documents": 180', '"documents": 181'))
    said = {
        "no JSON": "holdfast-tokens.json cannot be read or is no JSON",
        "another version": "holdfast-tokens.json has schema 2, and this version reads 1",
        "parts that do not add up": "its documents do not add up",
        "a missing file": "part-00002.ends is missing",
    }
    with pytest.raises(ConfigError, match=r"data\.path = 'out': .*" + said[damage]):
        open_dataset(small("out"), tmp_path, tmp_path / "cache")
