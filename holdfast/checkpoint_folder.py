"""What a checkpoint folder holds and whether it is whole: markers, checksums of blocks, leases of readers. No torch.

A step is committed when its folder holds a marker, and only then. The marker lists every file with its size and one
XXH3 checksum per block, so that a reader verifies exactly the bytes that it reads, once, whatever the world size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from holdfast.config import names
from holdfast.run_directory import read_json

MARKER_SCHEMA = 2
BLOCK_BYTES = 1 << 23
"""Bytes per checksum. 8 MiB: an 840 GB checkpoint has 100,000 of them (2 MB of marker), and a reader that wants one
tensor reads little beside it. XXH3 takes 25 GB/s here, CRC-32 of zlib 4 GB/s."""
SAMPLE_EVERY = 16
"""Where not all is verified, one block in so many is, and the last one of each file."""
DCP_METADATA = ".metadata"
"""torch's own description of the tensors. It is a pickle: unpickle it only after its checksum matched the marker."""
STATE = "state.json"
"""Our description: config, step, learning rate, data, world size."""


class BlockHashes:
    """Checksums of a stream of bytes, block by block, as it is written."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._digests: list[str] = []
        self._hash = xxhash.xxh3_64()
        self._in_block = 0
        self.bytes = 0

    def update(self, data: Any) -> None:
        """Take the next bytes (anything with the buffer protocol)."""
        view = memoryview(data).cast("B")
        self.bytes += len(view)
        while len(view):
            part = view[: self._block_bytes - self._in_block]
            self._hash.update(part)
            self._in_block += len(part)
            view = view[len(part) :]
            if self._in_block == self._block_bytes:
                self._close_block()

    def digests(self) -> tuple[str, ...]:
        """One digest per block; the last block may be short. Empty for no bytes. Ends the stream."""
        if self._in_block:
            self._close_block()
        return tuple(self._digests)

    def _close_block(self) -> None:
        self._digests.append(self._hash.hexdigest())
        self._hash.reset()
        self._in_block = 0


@dataclass(frozen=True)
class FileRecord:
    """One committed file: its name in the step folder, its size, and the checksum of each block."""

    name: str
    bytes: int
    xxh3: tuple[str, ...]

    @classmethod
    def of_content(cls, name: str, content: Any) -> FileRecord:
        """The record of a small file."""
        hashes = BlockHashes()
        hashes.update(content)
        return cls(name, hashes.bytes, hashes.digests())

    def check_block(self, index: int, data: Any) -> bool:
        """Whether `data` is block `index` as it was committed."""
        return xxhash.xxh3_64(data).hexdigest() == self.xxh3[index]


@dataclass(frozen=True)
class Marker:
    """The commit marker of a step. files: everything that must be there, `.metadata` and `state.json` included."""

    step: int
    attempt: str
    generation: int
    world_size: int
    files: tuple[FileRecord, ...]
    block_bytes: int = BLOCK_BYTES

    @property
    def bytes(self) -> int:
        """Size of the checkpoint."""
        return sum(file.bytes for file in self.files)

    def file(self, name: str) -> FileRecord | None:
        """The record of a file, or None if the checkpoint has none of that name."""
        return next((file for file in self.files if file.name == name), None)

    def text(self) -> str:
        """The marker as it is stored."""
        record = {
            "schema": MARKER_SCHEMA,
            "step": self.step,
            "attempt": self.attempt,
            "generation": self.generation,
            "world_size": self.world_size,
            "block_bytes": self.block_bytes,
            "files": [{"name": file.name, "bytes": file.bytes, "xxh3": list(file.xxh3)} for file in self.files],
        }
        return json.dumps(record)

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> Marker | None:
        """The marker in a JSON object, or None if it is not one of this schema."""
        try:
            if record is None or record["schema"] != MARKER_SCHEMA:
                return None
            files = tuple(FileRecord(str(f["name"]), int(f["bytes"]), tuple(f["xxh3"])) for f in record["files"])
            numbers = {key: int(record[key]) for key in ("step", "generation", "world_size", "block_bytes")}
            if any(len(file.xxh3) != -(-file.bytes // numbers["block_bytes"]) for file in files):
                return None  # it would leave blocks unverified
            return cls(attempt=str(record["attempt"]), files=files, **numbers)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


def read_marker(folder: Path) -> Marker | None:
    """The marker of a step folder; None if there is none that can be read, or if it belongs to another step."""
    marker = Marker.from_record(read_json(folder / names.COMMITTED))
    return marker if marker is not None and names.step_folder(marker.step) == folder.name else None


@dataclass(frozen=True)
class Found:
    """What a checkpoint folder holds: committed steps, ascending, and names of folders of unfinished saves.

    damaged: steps, ascending, whose folder has a marker that cannot be read. They were committed once, or may have
    been: they are never loaded, never deleted, and never taken for unfinished ones.
    """

    committed: tuple[int, ...]
    unfinished: tuple[str, ...]
    damaged: tuple[int, ...] = ()


def look(folder: Path) -> Found:
    """List a run's checkpoint folder. Order and times of directory entries mean nothing. Raises OSError."""
    committed, unfinished, damaged = [], [], []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not entry.name.startswith(names.STEP_PREFIX) or not entry.is_dir():
            continue
        step = names.step_of(entry.name)
        if step is None or names.step_folder(step) != entry.name:
            unfinished.append(entry.name)
        elif read_marker(entry) is not None:
            committed.append(step)
        elif not _has_marker(entry):
            unfinished.append(entry.name)
        elif read_marker(entry) is not None:  # it was committed since the first look
            committed.append(step)
        elif _has_marker(entry):
            damaged.append(step)
        else:
            unfinished.append(entry.name)  # retention has begun to delete it
    return Found(tuple(committed), tuple(unfinished), tuple(damaged))


def _has_marker(folder: Path) -> bool:
    """Whether a marker is there, readable or not. Storage that answers with an error does not say that it is absent."""
    try:
        os.lstat(folder / names.COMMITTED)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def damage(folder: Path, files: Iterable[FileRecord], block_bytes: int, every: int | None = 1) -> Iterator[str]:
    """What is wrong with committed files of a step folder, one message each.

    every: verify each n-th block, the first and the last ones; 1 verifies all, None only sizes.
    """
    for file in files:
        problem = _problem(folder / file.name, file, block_bytes, every)
        if problem:
            yield f"{folder.name}/{file.name}: {problem}"


def _problem(path: Path, file: FileRecord, block_bytes: int, every: int | None) -> str | None:
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"{size} bytes, {file.bytes} were committed"
        if every is None:
            return None
        with open(path, "rb", buffering=0) as stream:
            for index in range(len(file.xxh3)):
                if index % every and index != len(file.xxh3) - 1:
                    continue
                stream.seek(index * block_bytes)
                if not file.check_block(index, read_exactly(stream, min(block_bytes, size - index * block_bytes))):
                    return f"block {index} (from byte {index * block_bytes}) has another checksum than was committed"
    except OSError as error:
        return str(error.strerror)
    return None


def read_exactly(stream: Any, count: int) -> bytearray:
    """`count` bytes of a raw stream; fewer only at its end."""
    content = bytearray(count)
    view, filled = memoryview(content), 0
    while filled < count:
        got = stream.readinto(view[filled:])
        if not got:
            del view
            return content[:filled]
        filled += got
    return content
