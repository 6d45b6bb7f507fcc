"""Which files a preparation reads: below a path on this machine, or in a data set on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from holdfast.config import ConfigError, Problem
from trainer.data.hub import http_status, may_pass
from trainer.data.prepare.failures import WorkFailed, hub_failure, said
from trainer.data.sources import expand

SOURCE = "source"
"""Key under which problems with the input are told."""
HUB_PREFIX = "hf:"
PACKED = {".gz", ".bz2", ".zst"}
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".txt": "text"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SPLITS = re.compile(r"(?<![a-z])(train|valid(?:ation)?|dev|test)(?![a-z])")


@dataclass(frozen=True)
class InputFile:
    """One file to read. name: its path, or its path in the data set. stamp: changes with its content. hub:
    `owner/name@commit`, or empty for a file of this machine."""

    name: str
    size: int
    stamp: str
    format: str
    hub: str = ""

    @property
    def packing(self) -> str:
        """`.gz`, `.bz2`, `.zst`, or empty."""
        suffix = PurePosixPath(self.name).suffix
        return suffix if suffix in PACKED else ""

    def open(self) -> BinaryIO:
        """Its bytes as they are stored. One of the hub is streamed, except parquet, which is read from its end."""
        if not self.hub:
            return Path(self.name).open("rb")
        from huggingface_hub import HfFileSystem

        streamed = {} if self.format == "parquet" else {"block_size": 0}
        opened: BinaryIO = HfFileSystem().open(f"datasets/{self.hub}/{self.name}", "rb", **streamed)
        return opened


@dataclass(frozen=True)
class Inputs:
    """Files in a fixed order. commit: of a data set on the hub. left_out: other files that were found beside them."""

    files: tuple[InputFile, ...]
    commit: str | None = None
    left_out: int = 0


def find(source: str, storage: Path, pattern: str | None = None, revision: str | None = None) -> Inputs:
    """The files of a source. What exists here is a path; else `owner/name` (or `hf:name`) is a data set on the hub.

    storage: where a relative path starts. pattern: only files whose path below the source matches.

    Raises ConfigError; WorkFailed if the hub cannot be asked now.
    """
    root = storage / source
    if not source.startswith(HUB_PREFIX) and (root.exists() or not _HUB_NAME.fullmatch(source)):
        if revision:
            why = f"{source} is a path, and only a data set on the hub has revisions"
            raise ConfigError([Problem("--revision", revision, why, "leave it out")], "data prepare")
        return _local(source, root, pattern)
    return _on_hub(source.removeprefix(HUB_PREFIX), pattern, revision)


def format_of(name: str) -> str | None:
    """`text`, `jsonl` or `parquet` by the file's name; None for names that say nothing."""
    path = PurePosixPath(name)
    if path.suffix in PACKED:
        path = path.with_suffix("")
    return _FORMATS.get(path.suffix.lower())


def _local(source: str, root: Path, pattern: str | None) -> Inputs:
    problems: list[Problem] = []
    found = expand(source, root, problems, SOURCE)
    if problems:
        raise ConfigError(problems, "data prepare")
    if pattern is not None:
        found = [path for path in found if fnmatchcase(_below(root, path), pattern)]
    named = {path: format_of(path.name) for path in found}
    records = [path for path in found if named[path] in ("jsonl", "parquet")]
    # Beside records, plain text is a README or a licence; in a folder without records everything is text.
    chosen = records or found
    if not chosen:
        raise _nothing_matches(source, pattern)
    files = []
    for path in chosen:
        status = path.stat()
        if status.st_size:
            stamp = str(status.st_mtime_ns)
            files.append(InputFile(str(path.absolute()), status.st_size, stamp, named[path] or "text"))
    if not files:
        raise _nothing_matches(source, pattern)
    return Inputs(tuple(files), left_out=len(found) - len(files))


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path != root else path.name


def _on_hub(name: str, pattern: str | None, revision: str | None) -> Inputs:
    from huggingface_hub import HfApi

    try:
        info = HfApi().dataset_info(name, revision=revision, files_metadata=True)
    except Exception as error:  # noqa: BLE001 - of many libraries
        raise _listing_failure(error, name) from None
    listed = [file for file in info.siblings or [] if format_of(file.rfilename) and file.size]
    chosen = [file for file in listed if pattern is None or fnmatchcase(file.rfilename, pattern)]
    if not chosen:
        raise _nothing_matches(name, pattern)
    if pattern is None:
        _refuse_a_choice(name, [file.rfilename for file in chosen])
    hub = f"{name}@{info.sha}"
    files = [
        InputFile(file.rfilename, int(file.size or 0), _oid(file), format_of(file.rfilename) or "text", hub)
        for file in sorted(chosen, key=lambda file: file.rfilename)
    ]
    return Inputs(tuple(files), commit=info.sha, left_out=len(listed) - len(files))


def _listing_failure(error: Exception, name: str) -> ConfigError | WorkFailed:
    failure, status = hub_failure(error, SOURCE, name), http_status(error)
    if isinstance(failure, ConfigError) or may_pass(error) or not 400 <= status < 500:
        return failure
    problem = Problem(SOURCE, name, f"the Hugging Face hub refuses it (HTTP {status}: {said(error)})", "correct it")
    return ConfigError([problem], "data prepare")


def _oid(file: Any) -> str:
    return str(file.lfs.sha256 if file.lfs else file.blob_id)


def _refuse_a_choice(name: str, files: list[str]) -> None:
    """Variants and splits of one data set are not one corpus: to take all would train on tests, and on text twice."""
    folders = {str(PurePosixPath(file).parent) for file in files}
    splits = {match[1] for file in files for match in [_SPLITS.search(file.lower())] if match}
    if len(folders) > 1 or len(splits) > 1:
        seen = ", ".join(sorted(folders if len(folders) > 1 else splits)[:8])
        why = f"it has several parts ({seen}), which are seldom meant to be read together"
        fix = "choose with --files PATTERN, like --files 'en/c4-train.*.json.gz' ('*' takes everything)"
        raise ConfigError([Problem(SOURCE, name, why, fix)], "data prepare")


def _nothing_matches(source: str, pattern: str | None) -> ConfigError:
    if pattern is not None:
        problem = Problem("--files", pattern, f"no file of {source} that holds data matches it", "correct the pattern")
    else:
        why = "it holds no data: no .jsonl, .json, .parquet or .txt file, packed or not, that is not empty"
        problem = Problem(SOURCE, source, why, "name a file, a folder that holds some, or a data set on the hub")
    return ConfigError([problem], "data prepare")
