"""Many finished segments as one Parquet file, which any tool can read.

One row per event: `segment` (index into the segments of the file's metadata), `name`, `t`, `dur`, `whole.<key>` and
`real.<key>` for fields that hold integers and finite real numbers, and `rest`, the JSON of the others. The metadata
name each segment with its anchor and with what was wrong with it: whoever has this file needs those segments no more.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from holdfast.goodput.columns import ABSENT, NONE, Codes
from holdfast.goodput.lines import Rows, Segment
from holdfast.run_directory import sync_folder

SUFFIX = ".parquet"
TEMPORARY = ".parquet.tmp"
_SCHEMA = 1
_METADATA = b"holdfast"
_WHOLE, _REAL = "whole.", "real."
_ROW_GROUP = 256 * 1024
"""Rows that are read at once: bounds the memory of a reader to some ten megabytes beside what it keeps."""


class UnusableArchive(Exception):
    """The file is damaged, or of a version that this one does not know."""


def write(folder: Path, segments: Sequence[Segment]) -> Path:
    """Write segments to a new archive in `folder`. It is there whole and durable, or not at all."""
    path = folder / f"batch.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}{SUFFIX}"
    temporary = path.with_suffix(TEMPORARY)
    table = _table(segments)
    # Times differ in their low bits only; with their bytes apart they can be compressed.
    numbers = ["t", "dur", *(name for name in table.column_names if name.startswith(_REAL))]
    try:
        with open(temporary, "wb") as file:
            pq.write_table(
                table,
                file,
                row_group_size=_ROW_GROUP,
                compression="zstd",
                use_dictionary=["name", "rest"],
                use_byte_stream_split=numbers,
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def segments_of(path: Path) -> tuple[Segment, ...]:
    """The segments of an archive, without their rows. Raises UnusableArchive."""
    try:
        return _listed(pq.read_schema(path).metadata)
    except (OSError, pa.ArrowException) as error:
        raise UnusableArchive(str(error)) from None


def rows(path: Path, skip: Collection[int] = ()) -> Iterator[tuple[str, Codes, Rows, list[Mapping[str, Any]]]]:
    """(name, segment of each row, rows, rests) piece by piece; within a segment, a name's rows are in order.

    skip: segments that are wanted from elsewhere. Raises UnusableArchive.
    """
    try:
        with pq.ParquetFile(path) as file:
            known = len(_listed(file.schema_arrow.metadata))
            # Processes that were killed before they logged anything leave segments, but no rows, and so no columns.
            for group in range(file.num_row_groups if file.metadata.num_rows else 0):
                yield from _pieces(file.read_row_group(group), known, skip)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise UnusableArchive(str(error)) from None


def _listed(metadata: Mapping[bytes, bytes] | None) -> tuple[Segment, ...]:
    try:
        raw = json.loads((metadata or {})[_METADATA])
        schema, listed = raw["schema"], raw["segments"]
        segments = tuple(
            Segment(
                file=str(entry["file"]),
                anchor=entry["anchor"],
                counts={name: int(count) for name, count in entry["counts"].items()},
                findings=[(kind, text) for kind, text in entry["findings"]],
            )
            for entry in listed
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UnusableArchive(f"it is no archive of event segments ({error!r})") from None
    if schema != _SCHEMA:
        raise UnusableArchive(f"it has schema {schema}; this version knows {_SCHEMA}")
    return segments


def _table(segments: Sequence[Segment]) -> pa.Table:
    parts = [_part(number, segment) for number, segment in enumerate(segments)]
    table = pa.concat_tables(parts, promote_options="default") if parts else pa.table({})
    listed: list[dict[str, Any]] = [
        {
            "file": segment.file,
            "anchor": segment.anchor,
            "counts": {name: len(rows.t) for name, rows in segment.rows.items()},
            "findings": [list(finding) for finding in segment.findings],
        }
        for segment in segments
    ]
    return table.replace_schema_metadata({_METADATA: json.dumps({"schema": _SCHEMA, "segments": listed})})


def _part(number: int, segment: Segment) -> pa.Table:
    """The rows of one segment, name by name, those of one in the order of its lines."""
    by_name = [_named(number, name, found, segment.rests) for name, found in segment.rows.items()]
    return pa.concat_tables(by_name, promote_options="default") if by_name else pa.table({})


def _named(number: int, name: str, found: Rows, rests: Sequence[Mapping[str, Any]]) -> pa.Table:
    count = len(found.t)
    codes = [NONE] * count if found.rest is None else found.rest.tolist()
    columns: dict[str, Any] = {
        "segment": pa.array(np.full(count, number, np.int32)),
        "name": pa.array([name] * count, pa.string()),
        "t": pa.array(found.t),
        "dur": pa.array(found.dur),
        "rest": pa.array([None if code == NONE else json.dumps(rests[code]) for code in codes], pa.string()),
    }
    columns |= {_WHOLE + key: pa.array(v, mask=v == ABSENT) for key, v in found.whole.items()}
    columns |= {_REAL + key: pa.array(v, mask=np.isnan(v)) for key, v in found.real.items()}
    return pa.table(columns)


def _pieces(
    table: pa.Table, segments: int, skip: Collection[int]
) -> Iterator[tuple[str, Codes, Rows, list[Mapping[str, Any]]]]:
    segment = table["segment"].to_numpy()
    if len(segment) and not 0 <= segment.min() <= segment.max() < segments:
        raise ValueError("a row belongs to no segment")
    wanted = ~np.isin(segment, list(skip))
    names, name = _encoded(table["name"])
    rests, rest = _encoded(table["rest"])
    parsed: list[Mapping[str, Any]] = [json.loads(text) for text in rests]
    times = {key: table[key].to_numpy() for key in ("t", "dur")}
    for code, text in enumerate(names):
        rows = np.flatnonzero((name == code) & wanted)
        if len(rows):
            found = Rows(
                times["t"][rows],
                times["dur"][rows],
                _fields(table, rows, _WHOLE, ABSENT),
                _fields(table, rows, _REAL, np.nan),
                rest[rows] if (rest[rows] != NONE).any() else None,
            )
            yield text, segment[rows], found, parsed


def _encoded(column: pa.ChunkedArray) -> tuple[list[str], Codes]:
    """The distinct values of a column, and the index of each row's; NONE for null."""
    encoded = pc.dictionary_encode(column.combine_chunks())
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(NONE).to_numpy().astype(np.int32)


def _fields(table: pa.Table, rows: NDArray[np.int64], prefix: str, absent: float) -> dict[str, NDArray[Any]]:
    """The fields of one kind that any of these rows has."""
    found = {}
    for key in table.column_names:
        if key.startswith(prefix):
            column = table[key].combine_chunks().take(pa.array(rows))
            if column.null_count < len(column):
                found[key.removeprefix(prefix)] = column.fill_null(absent).to_numpy()
    return found
