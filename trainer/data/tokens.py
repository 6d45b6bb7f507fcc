"""Tokens on disk, read through memory maps: one stream over one or several files, and where its documents end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Ends = npt.NDArray[np.unsignedinteger[Any]]
"""Documents of a file, in order: for each the number of tokens up to and with its last one."""


@dataclass(frozen=True)
class TokenFile:
    """Part of a stream. ends: a file of uint64, or the numbers themselves."""

    path: Path
    tokens: int
    ends: Path | Ends


class Stream:
    """Tokens 0 .. `tokens` - 1 over files in order. A file is mapped when it is first read, and stays so."""

    def __init__(self, files: Sequence[TokenFile], dtype: str, limit: int | None = None) -> None:
        """dtype: numpy's name of the type of one token. limit: tokens behind it do not count."""
        self._files = list(files)
        self._dtype = np.dtype(dtype)
        self._starts = np.cumsum([0, *(file.tokens for file in files)], dtype=np.int64)
        self._mapped: dict[int, Tokens] = {}
        self._ends: dict[int, Ends] = {}
        whole = int(self._starts[-1])
        self.tokens = whole if limit is None else min(whole, limit)

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens start .. stop - 1, shape [stop - start], read-only where they lie in one file."""
        parts = [self._map(index)[low:high] for index, low, high in self._places(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def ends(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Ends of documents within start < end < stop, ascending, as places in the stream. An end is the place of the
        next document's first token."""
        found = []
        for index, low, high in self._places(start, stop):
            ends = self._ends_of(index)
            # In its own type: numpy would convert all of a mapped file to compare it with signed numbers.
            first, last = np.searchsorted(ends, np.asarray([low, high], dtype=ends.dtype), side="right")
            found.append(ends[first:last].astype(np.int64) + self._starts[index])
        joined = np.concatenate(found) if found else np.empty(0, np.int64)
        return joined[(joined > start) & (joined < stop)]

    def _places(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(file, from, to) of every file that has tokens of the stretch."""
        if not 0 <= start < stop <= self.tokens:
            raise ValueError(f"tokens {start} to {stop} of {self.tokens}: no such stretch")
        first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
        places = []
        for index in range(int(first), int(last) + 1):
            begin, end = int(self._starts[index]), int(self._starts[index + 1])
            if end > begin:
                places.append((index, max(start, begin) - begin, min(stop, end) - begin))
        return places

    def _map(self, index: int) -> Tokens:
        if index not in self._mapped:
            self._mapped[index] = np.memmap(self._files[index].path, dtype=self._dtype, mode="r")
        return self._mapped[index]

    def _ends_of(self, index: int) -> Ends:
        if index not in self._ends:
            ends = self._files[index].ends
            self._ends[index] = np.memmap(ends, dtype=np.uint64, mode="r") if isinstance(ends, Path) else ends
        return self._ends[index]
