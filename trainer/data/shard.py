"""The token file: `<cache>/<fingerprint>/tokens.bin` + `index.json`, made once, whole or not there.

It is written under a name of its own, synced, and renamed into place: a kill at any moment leaves either nothing or a
whole shard, and of several processes that race exactly one wins while the others use its result. A lock keeps them from
doing the same work side by side; it is a courtesy, the rename is what makes it right.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.run_directory import sync_folder
from trainer.data.sources import Source
from trainer.data.tokenizer import Tokenizer, token_type
from trainer.data.tokens import Stream, TokenFile

TOKENS = "tokens.bin"
INDEX = "index.json"
_PARTIAL = ".partial"
_ABANDONED_S = 3600.0
"""A partial shard that nobody has written to for so long belongs to a dead process."""


@dataclass(frozen=True)
class Shard:
    """A whole token file. tokens: their number. vocabulary: every id is below it. ends: of its documents, ascending.
    tokenizer: its identity."""

    fingerprint: str
    folder: Path
    tokens: int
    dtype: str
    vocabulary: int
    ends: tuple[int, ...]
    tokenizer: str

    def stream(self) -> Stream:
        """Its tokens, memory-mapped."""
        ends = np.asarray(self.ends, dtype=np.uint64)
        return Stream([TokenFile(self.folder / TOKENS, self.tokens, ends)], self.dtype)


def find(cache: Path, fingerprint: str) -> Shard | None:
    """The shard, if it is there and whole. One that is damaged, or does not say where documents end, is taken out of
    the way."""
    folder = cache / fingerprint
    try:
        index = json.loads((folder / INDEX).read_text())
        ends = tuple(int(end) for end in index["ends"])
        tokens, vocabulary = int(index["tokens"]), int(index["vocabulary"])
        shard = Shard(
            fingerprint, folder, tokens, str(index["dtype"]), vocabulary, ends, tokenizer=str(index["tokenizer"])
        )
        whole = (folder / TOKENS).stat().st_size == shard.tokens * np.dtype(shard.dtype).itemsize
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        whole = False
    if whole:
        return shard
    if folder.exists():
        _discard(folder)
    return None


def make(
    cache: Path,
    fingerprint: str,
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    digests: Sequence[str],
    wait_s: float,
) -> Shard:
    """Tokenize the sources, or use the shard of another process that does so already (waiting at most `wait_s` for it).

    Raises OSError if the disk is full or a source changed since its digest was taken.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with _turn(cache / f"{fingerprint}.lock", lambda: (cache / fingerprint).exists(), wait_s):
        ready = find(cache, fingerprint)
        if ready is None:
            _sweep(cache)
            _build(cache, fingerprint, tokenizer, sources, digests)
            ready = find(cache, fingerprint)
    if ready is None:
        raise OSError(f"{cache / fingerprint} vanished after it was written; is something else cleaning {cache}?")
    return ready


def _build(
    cache: Path, fingerprint: str, tokenizer: Tokenizer, sources: Sequence[Source], digests: Sequence[str]
) -> None:
    partial = _own_folder(cache / fingerprint)
    partial.chmod(0o755)  # mkdtemp's 0700 would shut out the ranks of another user
    try:
        ends = _write_tokens(partial / TOKENS, tokenizer, sources, digests)
        index = {
            "fingerprint": fingerprint,
            "tokens": ends[-1],
            "ends": ends,
            "dtype": token_type(tokenizer.vocabulary).name,
            "vocabulary": tokenizer.vocabulary,
            "tokenizer": tokenizer.identity,
            "sources": [
                {"path": str(source.path), "size": source.used, "sha256": digest}
                for source, digest in zip(sources, digests, strict=True)
            ],
        }
        _write_synced(partial / INDEX, json.dumps(index, indent=1).encode())
        sync_folder(partial)
        _publish(partial, cache / fingerprint)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after the rename there is nothing by that name


def _write_tokens(path: Path, tokenizer: Tokenizer, sources: Sequence[Source], digests: Sequence[str]) -> list[int]:
    """Each source is a document; the ends of all."""
    count, ends = 0, []
    with path.open("wb") as file:
        for source, digest in zip(sources, digests, strict=True):
            read = hashlib.sha256()
            for tokens in tokenizer.encode(_digested(source, read.update)):
                file.write(tokens.tobytes())
                count += len(tokens)
            if read.hexdigest() != digest:
                raise OSError(f"{source.path} changed while it was read; do not change it during a run")
            ends.append(count)
        file.flush()
        os.fsync(file.fileno())
    return ends


def _digested(source: Source, update: Callable[[bytes], Any]) -> Iterator[bytes]:
    for chunk in source.read():
        update(chunk)
        yield chunk


def _publish(partial: Path, final: Path) -> None:
    try:
        os.rename(partial, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # otherwise another process was first, and its shard is as good as ours
    sync_folder(final.parent)


@contextmanager
def _turn(lock: Path, done: Callable[[], bool], wait_s: float) -> Iterator[None]:
    """Hold the lock, or go on without it: when `done` says that there is nothing left to do, when `wait_s` is over, and
    on a file system without locks. The kernel frees the lock of a process that dies."""
    deadline = time.monotonic() + wait_s
    with lock.open("ab") as file:
        while not done() and time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break
            else:
                break
        yield


def _discard(folder: Path) -> None:
    aside = _own_folder(folder)
    with suppress(FileNotFoundError):  # another process has done it
        os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _own_folder(final: Path) -> Path:
    """A new empty folder beside `final` that no other process uses."""
    name = f".{final.name}.{socket.gethostname()}.{os.getpid()}."
    return Path(tempfile.mkdtemp(prefix=name, suffix=_PARTIAL, dir=final.parent))


def _sweep(cache: Path) -> None:
    """Remove what killed processes left behind."""
    for partial in cache.glob(f".*{_PARTIAL}"):
        try:
            last = max(path.stat().st_mtime for path in (partial, *partial.iterdir()))
        except FileNotFoundError:
            continue
        if time.time() - last > _ABANDONED_S:
            shutil.rmtree(partial, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
