"""What a folder is being made of. Written before the first piece, so that a second run goes on with exactly that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.config import ConfigError, Problem
from holdfast.run_directory import read_json, write_atomically
from trainer.data.prepare import inputs, pieces
from trainer.data.prepare.inputs import InputFile
from trainer.data.prepare.piece import Mark
from trainer.data.prepare.pieces import Piece
from trainer.data.prepared import MANIFEST, PLAN, SCHEMA
from trainer.data.tokenizer import Tokenizer, token_type


@dataclass(frozen=True)
class Request:
    """What the user asks for. storage: where a relative source and tokenizer start."""

    source: str
    out: Path
    tokenizer: str
    storage: Path = Path()
    files: str | None = None
    revision: str | None = None
    text_key: str = "text"
    workers: int = 1


@dataclass(frozen=True)
class Plan:
    """The work. revision: what was asked for when it was begun, like a branch; commit: what that was then. left_out:
    files beside the chosen ones, for people."""

    request: Request
    commit: str | None
    pieces: tuple[Piece, ...]
    left_out: int = 0
    revision: str | None = None

    def record(self, encoder: Tokenizer) -> dict[str, Any]:
        """As JSON."""
        files = list(dict.fromkeys(piece.file for piece in self.pieces))
        numbers = {file: number for number, file in enumerate(files)}
        return {
            "schema": SCHEMA,
            "source": self.request.source,
            "pattern": self.request.files,
            "revision": self.revision,
            "commit": self.commit,
            "text_key": self.request.text_key,
            "tokenizer": {"name": self.request.tokenizer, "identity": encoder.identity},
            "files": [asdict(file) for file in files],
            "pieces": [[numbers[piece.file], piece.start, piece.stop, piece.weight] for piece in self.pieces],
        }


def settle(request: Request, encoder: Tokenizer) -> Plan:
    """The plan of a new folder, written into it; or the one that is there, if it is the same work.

    Raises ConfigError if the folder holds something else.
    """
    there = read_json(request.out / PLAN)
    if there is None:
        _refuse_foreign(request.out)
    plan = _resumed(request, there) or _new(request)
    record = json.loads(json.dumps(plan.record(encoder)))
    if there is None:
        write_atomically(request.out / PLAN, json.dumps(record, indent=1))
        return plan
    # Not the revision: under which name the same commit was asked for changes nothing.
    differing = [key for key in record if key != "revision" and there.get(key) != record[key]]
    if differing:
        why = f"it holds the preparation of something else: {', '.join(differing)} differ"
        raise ConfigError([_other_folder(request.out, why)], "data prepare")
    return plan


def _new(request: Request) -> Plan:
    found = inputs.find(request.source, request.storage, request.files, request.revision)
    return Plan(request, found.commit, tuple(pieces.cut(found.files)), found.left_out, request.revision)


def _resumed(request: Request, there: dict[str, Any] | None) -> Plan | None:
    """For a data set on the hub, the commit that was begun with: the hub, or the branch, may have moved on."""
    if there is None or there.get("commit") is None:
        return None
    if request.revision not in (None, there["commit"], there.get("revision")):
        return None
    if (there.get("source"), there.get("pattern")) != (request.source, request.files):
        return None
    try:
        files = [InputFile(**file) for file in there["files"]]
        found = tuple(Piece(files[index], start, stop, weight) for index, start, stop, weight in there["pieces"])
    except (KeyError, TypeError, IndexError, ValueError):
        return None
    return Plan(request, str(there["commit"]), found, revision=there.get("revision"))


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError([_other_folder(out, "it is a file")], "data prepare")
    if out.is_dir() and any(path.name[0] != "." for path in out.iterdir()):
        raise ConfigError([_other_folder(out, f"it is not empty, and has no {PLAN}")], "data prepare")


def _other_folder(out: Path, why: str) -> Problem:
    return Problem("--to", str(out), why, "name another folder, or remove this one first")


def manifest(plan: Plan, encoder: Tokenizer, marks: Sequence[Mark]) -> dict[str, Any]:
    """The content of the manifest of a folder whose pieces are all done. Raises ConfigError if there is no token."""
    totals = {key: sum(int(mark[key]) for mark in marks) for key in ("tokens", "documents", "text_bytes")}
    if not totals["tokens"]:
        why = f"it holds no text: all its records are empty under {plan.request.text_key!r}"
        fix = "name the key of the text with --text-key, or another source"
        raise ConfigError([Problem(inputs.SOURCE, plan.request.source, why, fix)], "data prepare")
    content = [SCHEMA, encoder.identity, [[mark["tokens_sha256"], mark["ends_sha256"]] for mark in marks]]
    return {
        "schema": SCHEMA,
        "fingerprint": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32],
        "dtype": token_type(encoder.vocabulary).name,
        "vocabulary": encoder.vocabulary,
        "tokenizer": {"name": plan.request.tokenizer, "identity": encoder.identity, "end": encoder.end},
        **totals,
        "source": plan.request.source,
        "commit": plan.commit,
        "parts": [{key: value for key, value in mark.items() if key != "number"} for mark in marks],
    }


def write_manifest(out: Path, content: dict[str, Any]) -> None:
    """The last file: from now on the folder is one to train on."""
    write_atomically(out / MANIFEST, json.dumps(content, indent=1))
