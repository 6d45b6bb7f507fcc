"""Reads the documents of one piece, with the place of whatever cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from holdfast.config import ConfigError, Problem
from trainer.data.prepare.inputs import SOURCE, InputFile
from trainer.data.prepare.pieces import Piece, torn_parquet
from trainer.data.sources import CHUNK
from trainer.data.tokenizer import cut_of
from trainer.data.utf8 import Utf8, not_utf8

ROWS = 256
"""Rows of parquet that are in memory at once."""


@dataclass(frozen=True)
class Text:
    """Text of a document; `last`: the document ends with it. done: stored bytes of the piece that were read by now."""

    text: str
    last: bool
    done: int


def read(piece: Piece, text_key: str) -> Iterator[Text]:
    """The documents of a piece; records without text are left out. Raises ConfigError with the place of what is wrong,
    OSError if the file cannot be read."""
    readers = {"text": _text, "jsonl": _json_lines, "parquet": _parquet}
    return readers[piece.file.format](piece, text_key)


class _Counted(io.RawIOBase):
    """A file that counts what was read of it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


@contextmanager
def _unpacked(file: InputFile) -> Iterator[tuple[BinaryIO, _Counted]]:
    with ExitStack() as stack:
        counted = _Counted(stack.enter_context(file.open()))
        plain: Any
        if file.packing == ".gz":
            plain = gzip.GzipFile(fileobj=io.BufferedReader(counted), mode="rb")
        elif file.packing == ".bz2":
            plain = bz2.BZ2File(io.BufferedReader(counted))
        elif file.packing == ".zst":
            import pyarrow as pa

            plain = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(counted, mode="r"), "zstd"))
        else:
            plain = io.BufferedReader(counted, CHUNK)
        try:
            yield plain, counted
        except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
            raise _torn(file, error) from None
        except OSError as error:
            if file.packing and error.errno is None:  # the decompressors' own
                raise _torn(file, error) from None
            raise


def _check_all_read(file: InputFile, counted: _Counted) -> None:
    """A connection may end early as if the file did."""
    if counted.count != file.size:
        raise OSError(f"{file.name} ended after {counted.count} of {file.size} bytes")


def _torn(file: InputFile, error: Exception) -> ConfigError:
    why = f"it is no whole {file.packing} file ({str(error).strip() or type(error).__name__})"
    return ConfigError([Problem(SOURCE, file.name, why, "copy it again, or leave it out")], "data prepare")


def _text(piece: Piece, text_key: str) -> Iterator[Text]:
    file = piece.file
    decoder = Utf8(file.name, SOURCE, packed=bool(file.packing))
    rest = ""
    with _unpacked(file) as (plain, counted):
        while chunk := plain.read(CHUNK):
            text = rest + decoder.decode(chunk)
            at = cut_of(text)
            rest = text[at:]
            if at:
                yield Text(text[:at], False, min(counted.count, piece.weight))
        _check_all_read(file, counted)
        rest += decoder.decode(b"", final=True)
        yield Text(rest, True, piece.weight)


def _json_lines(piece: Piece, text_key: str) -> Iterator[Text]:
    file = piece.file
    with _unpacked(file) as (plain, counted):
        if file.packing or file.hub:
            for at, line in _numbered(plain, 0, None):
                text = _text_of(line, at, file, text_key)
                if text:
                    # Of a plain file the place of the line: the reader is up to a megabyte ahead.
                    done = counted.count if file.packing else at + len(line)
                    yield Text(text, True, min(done, piece.weight))
            _check_all_read(file, counted)
            return
    with file.open() as raw:
        begin = piece.start
        if begin:  # the line that begins before belongs to the piece before
            raw.seek(begin - 1)
            begin += len(raw.readline()) - 1
        for at, line in _numbered(raw, begin, piece.stop):
            text = _text_of(line, at, file, text_key)
            if text:
                yield Text(text, True, min(at + len(line) - piece.start, piece.weight))


def _numbered(file: BinaryIO, at: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
    """(place, line) of the lines that begin before `stop`."""
    while stop is None or at < stop:
        line = file.readline()
        if not line:
            return
        yield at, line
        at += len(line)


def _text_of(line: bytes, at: int, file: InputFile, key: str) -> str | None:
    packed = bool(file.packing)
    where = f"its line from byte {at} on{' of what it holds uncompressed' if packed else ''}"
    try:
        plain = line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(file.name, SOURCE, at + error.start, packed=packed) from None
    if not plain.strip():
        return None
    try:
        record = json.loads(plain)
    except ValueError as error:
        why = f"{where} is not JSON ({error}): {_shown(plain)}"
        fix = "give one JSON object per line; a last line that is cut off means that the file is torn"
        raise ConfigError([Problem(SOURCE, file.name, why, fix)], "data prepare") from None
    if not isinstance(record, dict) or key not in record:
        has = f"has the keys {', '.join(sorted(record))}" if isinstance(record, dict) else "is no object"
        why = f"{where} {has}, and not {key!r}"
        raise ConfigError([Problem(SOURCE, file.name, why, "name the key of the text with --text-key")], "data prepare")
    text = record[key]
    if text is not None and not isinstance(text, str):
        why = f"{where} has {type(text).__name__} under {key!r}, and not text"
        raise ConfigError([Problem(SOURCE, file.name, why, "name the key of the text with --text-key")], "data prepare")
    return _whole(text, file, where)


def _whole(text: str | None, file: InputFile, where: str) -> str | None:
    """The text; refused if JSON's escapes put half a character into it, which no tokenizer can take."""
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        why = f"{where} holds half of a surrogate pair, which is no character"
        raise ConfigError([Problem(SOURCE, file.name, why, "mend it, or leave it out")], "data prepare") from None
    return text


def _shown(line: str) -> str:
    line = line.strip()
    return repr(line if len(line) <= 40 else f"{line[:37]}...")


def _parquet(piece: Piece, text_key: str) -> Iterator[Text]:
    import pyarrow.parquet as pq

    file = piece.file
    with file.open() as raw:
        try:
            table = pq.ParquetFile(raw)
            groups = range(table.metadata.num_row_groups) if file.hub else range(piece.start, piece.stop)
            _check_column(table.schema_arrow, file, text_key)
            rows = sum(table.metadata.row_group(group).num_rows for group in groups)
            read_rows = 0
            for batch in table.iter_batches(batch_size=ROWS, row_groups=list(groups), columns=[text_key]):
                for text in batch.column(0).to_pylist():
                    read_rows += 1
                    if text:
                        yield Text(text, True, piece.weight * read_rows // rows)
        except UnicodeDecodeError:
            why = f"column {text_key!r} holds text that is not UTF-8, within {ROWS} rows after row {read_rows}"
            fix = "write the file again with text as UTF-8"
            raise ConfigError([Problem(SOURCE, file.name, why, fix)], "data prepare") from None
        except (ValueError, OSError) as error:
            if file.hub and isinstance(error, OSError):
                raise  # the network's
            raise torn_parquet(file, error) from None


def _check_column(schema: Any, file: InputFile, key: str) -> None:
    import pyarrow as pa

    if key not in schema.names:
        why = f"its columns are {', '.join(schema.names)}, and not {key!r}"
        raise ConfigError([Problem(SOURCE, file.name, why, "name the column with --text-key")], "data prepare")
    kind = schema.field(key).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        why = f"its column {key!r} has the type {kind}, and not string"
        raise ConfigError([Problem(SOURCE, file.name, why, "name a column of text with --text-key")], "data prepare")
