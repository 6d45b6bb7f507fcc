"""Cuts input files into pieces: what one process makes at a time, and what a restart does not make again.

The cut depends on the files alone, never on the number of processes, so that any number of them makes the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config import ConfigError, Problem
from trainer.data.prepare.inputs import SOURCE, InputFile

SMALLEST, LARGEST = 1 << 26, 1 << 30
"""Bytes. Below, starting a piece costs more than it saves; above, too much is lost with a killed process."""
PIECES = 1024
"""About so many, where the limits above allow it."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a file: bytes of JSON lines (the lines that begin in it), row groups of parquet, else all of it.
    weight: stored bytes, for progress."""

    file: InputFile
    start: int
    stop: int
    weight: int


def cut(files: Sequence[InputFile], smallest: int = SMALLEST) -> list[Piece]:
    """The pieces of all files, in order. Raises ConfigError for a parquet file of this machine that is torn."""
    total = sum(file.size for file in files)
    size = max(smallest, min(LARGEST, total // PIECES))
    return [piece for file in files for piece in _of_file(file, size)]


def _of_file(file: InputFile, size: int) -> Iterator[Piece]:
    if file.hub or file.packing or file.format == "text":
        # A packed file is read from its start; a text is one document; of the hub's files only the sizes are known.
        yield Piece(file, 0, file.size, file.size)
    elif file.format == "parquet":
        yield from _row_groups(file, size)
    else:
        for start in range(0, file.size, size):
            stop = min(start + size, file.size)
            yield Piece(file, start, stop, stop - start)


def _row_groups(file: InputFile, size: int) -> Iterator[Piece]:
    metadata = parquet_metadata(file)
    first, weight = 0, 0
    for group in range(metadata.num_row_groups):
        weight += max(1, metadata.row_group(group).total_byte_size)
        if weight >= size or group == metadata.num_row_groups - 1:
            yield Piece(file, first, group + 1, weight)
            first, weight = group + 1, 0


def parquet_metadata(file: InputFile) -> Any:
    """pyarrow's FileMetaData. Raises ConfigError if the file is torn."""
    import pyarrow.parquet as pq

    with file.open() as raw:
        try:
            return pq.read_metadata(raw)
        except (ValueError, OSError) as error:
            raise torn_parquet(file, error) from None


def torn_parquet(file: InputFile, error: Exception) -> ConfigError:
    """The refusal of a file that cannot be read as parquet."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    fix = "copy it again, or leave it out"
    return ConfigError([Problem(SOURCE, file.name, f"it is no whole parquet file ({reason})", fix)], "data prepare")
