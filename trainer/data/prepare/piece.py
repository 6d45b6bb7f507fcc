"""Makes one piece: reads, tokenizes, writes two files, and then the mark that the piece is done."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from holdfast.run_directory import read_json, sync_folder, write_atomically
from trainer.data.prepare.pieces import Piece
from trainer.data.prepare.records import Text, read
from trainer.data.prepared import part_names
from trainer.data.tokenizer import Tokenizer, token_type

TEMPORARY = ".making-"
"""Begin of the names of files that are being written. Without an owner they are swept away."""
BATCH_CHARACTERS = 1 << 19
"""Text that is tokenized in one call."""
BATCH_TEXTS = 512

Mark = dict[str, int | str]
"""Of a piece that is done: number, tokens, documents, text_bytes, and the SHA-256 of its two files."""


def make(
    number: int, piece: Piece, out: Path, encoder: Tokenizer, text_key: str, tell: Callable[[int], object]
) -> Mark:
    """Make piece `number` in `out`. tell: gets the stored bytes of it that are done.

    Raises ConfigError for input that cannot be used, OSError if a disk fails or the file changed since it was listed.
    """
    tokens, ends, mark = part_names(number)
    with ExitStack() as stack:
        token_file = stack.enter_context(_Hashed(out, tokens))
        end_file = stack.enter_context(_Hashed(out, ends))
        written = _write(piece, encoder, text_key, token_file, end_file, tell)
        _check_unchanged(piece)
        record: Mark = {"number": number, **written, "tokens_sha256": token_file.digest, "ends_sha256": end_file.digest}
        token_file.publish()
        end_file.publish()
    sync_folder(out)
    write_atomically(out / mark, json.dumps(record, indent=1))
    return record


def done(number: int, out: Path, size: int) -> Mark | None:
    """The mark of a piece that is done, judged by the sizes of its files. size: bytes of a token."""
    tokens, ends, mark = part_names(number)
    record = read_json(out / mark)
    if record is None or record.get("number") != number:
        return None
    try:
        whole = (out / tokens).stat().st_size == record["tokens"] * size
        whole &= (out / ends).stat().st_size == record["documents"] * 8
    except (OSError, KeyError, TypeError):
        return None
    return record if whole else None


class _Hashed:
    """A file that is hashed as it is written, under a temporary name until it is whole and synced."""

    def __init__(self, folder: Path, name: str) -> None:
        self._final = folder / name
        self._path = folder / f"{TEMPORARY}{name}.{socket.gethostname()}.{os.getpid()}"
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Hashed:
        self._file = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def write(self, values: npt.NDArray[Any]) -> None:
        """Append the values as they lie in memory."""
        assert self._file is not None
        data = values.tobytes()
        self._hash.update(data)
        self._file.write(data)

    @property
    def digest(self) -> str:
        """SHA-256 of what was written."""
        return self._hash.hexdigest()

    def publish(self) -> None:
        """Sync it and give it its name."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(self._final)


def _write(
    piece: Piece, encoder: Tokenizer, text_key: str, tokens: _Hashed, ends: _Hashed, tell: Callable[[int], object]
) -> dict[str, int]:
    count, documents, text_bytes = 0, 0, 0
    end = np.asarray([] if encoder.end is None else [encoder.end], dtype=token_type(encoder.vocabulary))
    for batch in _batches(read(piece, text_key)):
        for text, ids in zip(batch, encoder.ids([one.text for one in batch]), strict=True):
            tokens.write(ids)
            count += len(ids)
            text_bytes += len(text.text.encode())
            if text.last:
                tokens.write(end)
                count += len(end)
                documents += 1
                ends.write(np.asarray([count], dtype=np.uint64))
        tell(batch[-1].done)
    return {"tokens": count, "documents": documents, "text_bytes": text_bytes}


def _batches(texts: Iterator[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _check_unchanged(piece: Piece) -> None:
    if piece.file.hub:
        return  # a commit does not change
    status = os.stat(piece.file.name)
    if (status.st_size, str(status.st_mtime_ns)) != (piece.file.size, piece.file.stamp):
        raise OSError(f"{piece.file.name} changed while it was read; prepare again when nobody writes to it")
