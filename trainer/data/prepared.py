"""A prepared folder: tokens that `holdfast data prepare` made, with a manifest that is written last.

holdfast-plan.json      what is being made, written first: sources, pieces, tokenizer
part-00000.tokens       token ids of one piece, of the manifest's dtype
part-00000.ends         uint64: where its documents end
part-00000.json         written when the two above are whole: that piece is done
holdfast-tokens.json    the manifest; a folder without it is not finished and is not trained on
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.config import ConfigError, Problem
from holdfast.run_directory import read_json
from trainer.data.tokens import Stream, TokenFile

SCHEMA = 1
MANIFEST = "holdfast-tokens.json"
PLAN = "holdfast-plan.json"


@dataclass(frozen=True)
class Prepared:
    """One prepared folder, judged whole by the sizes of its files. tokenizer: {name, identity}."""

    folder: Path
    fingerprint: str
    dtype: str
    vocabulary: int
    tokenizer: dict[str, str]
    tokens: int
    documents: int
    text_bytes: int
    files: tuple[TokenFile, ...]


def part_names(number: int) -> tuple[str, str, str]:
    """File names of one piece: tokens, ends, and the mark that it is done."""
    stem = f"part-{number:05d}"
    return f"{stem}.tokens", f"{stem}.ends", f"{stem}.json"


def is_prepared(folder: Path) -> bool:
    """Whether `holdfast data prepare` has written into the folder, be it finished or not."""
    return (folder / MANIFEST).is_file() or (folder / PLAN).is_file()


def open_prepared(folder: Path, key: str, entry: str) -> Prepared:
    """Read the manifest and compare the sizes of all files with it. key, entry: where the config names the folder.

    Raises ConfigError if the folder is not finished, damaged, or of another version.
    """
    record = read_json(folder / MANIFEST)
    if record is None:
        raise _refusal(key, entry, *_without_manifest(folder))
    if record.get("schema") != SCHEMA:
        why = f"{MANIFEST} has schema {record.get('schema')!r}, and this version reads {SCHEMA}"
        raise _refusal(key, entry, why, "prepare it again with this version")
    try:
        prepared = _from_record(folder, record)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(key, entry, f"{MANIFEST} is damaged ({error!r})", "prepare it again") from None
    broken = _broken_file(prepared)
    if broken:
        raise _refusal(key, entry, broken, "remove that file and its part-*.json and prepare again: the rest is kept")
    return prepared


def joined(several: Sequence[Prepared], limit_bytes: int | None) -> tuple[str, Stream]:
    """Fingerprint and stream of prepared folders one after the other.

    limit_bytes: use as many tokens as so much text has, by the mean of these folders.
    """
    tokens, text = sum(one.tokens for one in several), sum(one.text_bytes for one in several)
    limit = None if limit_bytes is None or limit_bytes >= text else max(1, tokens * limit_bytes // text)
    stream = Stream([file for one in several for file in one.files], several[0].dtype, limit)
    if len(several) == 1 and limit is None:
        return several[0].fingerprint, stream
    content = json.dumps([[one.fingerprint for one in several], limit])
    return hashlib.sha256(content.encode()).hexdigest()[:32], stream


def _from_record(folder: Path, record: dict[str, Any]) -> Prepared:
    files = []
    for number, part in enumerate(record["parts"]):
        tokens, ends, _ = part_names(number)
        files.append((TokenFile(folder / tokens, int(part["tokens"]), folder / ends), int(part["documents"])))
    prepared = Prepared(
        folder=folder,
        fingerprint=str(record["fingerprint"]),
        dtype=np.dtype(record["dtype"]).name,
        vocabulary=int(record["vocabulary"]),
        tokenizer={name: str(record["tokenizer"][name]) for name in ("name", "identity")},
        tokens=int(record["tokens"]),
        documents=int(record["documents"]),
        text_bytes=int(record["text_bytes"]),
        files=tuple(file for file, _ in files),
    )
    if sum(file.tokens for file in prepared.files) != prepared.tokens or not prepared.tokens:
        raise ValueError("its parts do not add up")
    if sum(documents for _, documents in files) != prepared.documents:
        raise ValueError("its documents do not add up")
    return prepared


def _broken_file(prepared: Prepared) -> str | None:
    size = np.dtype(prepared.dtype).itemsize
    ends_bytes = 0
    for file in prepared.files:
        assert isinstance(file.ends, Path)
        for path in (file.path, file.ends):
            if not path.is_file():
                return f"{path.name} is missing"
        if file.path.stat().st_size != file.tokens * size:
            return f"{file.path.name} has {file.path.stat().st_size} bytes instead of {file.tokens * size}"
        ends_bytes += file.ends.stat().st_size
    if ends_bytes != prepared.documents * 8:
        return f"its .ends files have {ends_bytes} bytes instead of {prepared.documents * 8}"
    return None


def _without_manifest(folder: Path) -> tuple[str, str]:
    if (folder / MANIFEST).exists():
        return f"{MANIFEST} cannot be read or is no JSON", "prepare it again"
    plan = read_json(folder / PLAN) or {}
    pieces = len(plan.get("pieces", ()))
    done = sum((folder / part_names(number)[2]).is_file() for number in range(pieces))
    why = f"its preparation is not finished: {done} of {pieces} pieces are done"
    return why, "run the same `holdfast data prepare` again: it goes on where it stopped"


def _refusal(key: str, entry: str, why: str, fix: str) -> ConfigError:
    return ConfigError([Problem(key, entry, why, fix)], "data")
