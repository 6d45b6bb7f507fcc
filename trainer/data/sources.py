"""Which bytes of text a run reads: the files that the config names, in a fixed order, up to `data.limit_mib`."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import ConfigError, Problem
from holdfast.config.data import Data
from trainer.data.utf8 import Utf8

CHUNK = 1 << 20
"""Bytes read at a time."""

_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
"""Folders below the standard library that are not its source: what was installed; tests, which some systems omit."""


@dataclass(frozen=True)
class Source:
    """A text file and how many of its bytes are used. `stamp` (size, mtime, inode) changes when the file does. `key` is
    that of the config that names it."""

    path: Path
    used: int
    stamp: tuple[int, int, int]
    key: str = "data.path"

    def read(self) -> Iterator[bytes]:
        """The used bytes in chunks. Raises OSError if the file has become shorter, ConfigError if it is not UTF-8 text.
        The limit may cut its last character."""
        left, text = self.used, Utf8(str(self.path), self.key)
        with self.path.open("rb") as file:
            while left:
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    raise OSError(f"{self.path} became shorter while it was read; do not change it during a run")
                left -= len(chunk)
                text.decode(chunk, final=not left and self.used == self.stamp[0])
                yield chunk

    def digest(self) -> str:
        """SHA-256 of the used bytes."""
        total = hashlib.sha256()
        for chunk in self.read():
            total.update(chunk)
        return total.hexdigest()


def find(entries: Sequence[str], limit: int | None, storage: Path, key: str = "data.path") -> tuple[Source, ...]:
    """The files to read; none named: the standard library. Relative paths start at `storage`.

    limit: bytes in all. Raises ConfigError with every path that cannot be used, under `key`.
    """
    problems: list[Problem] = []
    files: list[Path] = []
    for entry in entries:
        files += expand(entry, storage / entry, problems, key)
    if not entries:
        files = _standard_library()
    sources = [] if problems else _up_to(limit, files, problems, key)
    if problems:
        raise ConfigError(problems, "data")
    return tuple(sources)


def limit_bytes(data: Data) -> int | None:
    """`data.limit_mib` in bytes."""
    return None if data.limit_mib is None else int(data.limit_mib * 2**20)


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in walk(root, [], _NOT_STDLIB) if path.suffix == ".py"]
    if not files:
        why = f"it is empty, and this interpreter has no library source below {root}"
        raise ConfigError([Problem("data.path", (), why, "name text files")], "data")
    return files


def expand(entry: str, path: Path, problems: list[Problem], key: str) -> list[Path]:
    """The files below one entry. An entry that yields no text is a problem: silence would train on something else."""
    if not path.exists():
        fix = "correct the path, or copy the data there"
        problems.append(Problem(key, entry, f"{path} does not exist", fix))
        return []
    if path.is_file():
        files = [path]
    else:
        errors: list[OSError] = []
        files = walk(path, errors)
        problems += [_unreadable(key, entry, error) for error in errors]
    try:
        if not any(file.stat().st_size for file in files):
            problems.append(Problem(key, entry, f"{path} holds no text", "name files that are not empty"))
    except OSError as error:
        problems.append(_unreadable(key, entry, error))
    return files


def walk(root: Path, errors: list[OSError], skip: frozenset[str] = frozenset()) -> list[Path]:
    """Files below root in an order that does not depend on the file system. Hidden ones are left out; links are
    followed, each folder once."""
    found: list[Path] = []
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=errors.append):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in skip)
        found += [Path(folder, name) for name in names if name[0] != "."]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(root).parts)


def _up_to(limit: int | None, files: list[Path], problems: list[Problem], key: str) -> list[Source]:
    sources: list[Source] = []
    left = limit
    for path in files:
        if left == 0:
            break
        try:
            status = path.stat()
            readable = os.access(path, os.R_OK)
        except OSError as error:
            problems.append(_unreadable(key, str(path), error))
            continue
        if not readable:
            problems.append(_unreadable(key, str(path), PermissionError("permission denied")))
        used = status.st_size if left is None else min(left, status.st_size)
        if used:
            sources.append(Source(path, used, (status.st_size, status.st_mtime_ns, status.st_ino), key))
        if left is not None:
            left -= used
    return sources


def _unreadable(key: str, entry: str, error: OSError) -> Problem:
    why = f"it cannot be read ({error.strerror or error})"
    return Problem(key, entry, why, "make it readable for the training user")
