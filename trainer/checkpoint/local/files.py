"""Parts on a node: a raw dump of one rank's staged bytes, and a record beside it that makes it whole.

`<folder>/step-00000030.<attempt>-s<serial>/rank-<saved rank>.bin` holds the bytes, `rank-<saved rank>.json` says what
they are and has one checksum per block. The record is written last; without it there is no part. Nothing in a path
says who holds a part now: parts are found by what their records say, because ranks and nodes change places.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.checkpoint_folder import BlockHashes
from holdfast.run_directory import read_json, sync_folder, write_atomically, write_once
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part, Save

NODE = "node.json"
"""In the folder: its own name, drawn once. Two ranks that read the same name share a disk."""


class Damaged(Exception):
    """A part on this node is not what was written."""


def node_id(folder: Path) -> str:
    """Name of this node's folder, drawn when it was first used and gone with the disk. Raises OSError."""
    write_once(folder / NODE, json.dumps({"node": uuid.uuid4().hex}))
    return str((read_json(folder / NODE) or {}).get("node", ""))


# --- writing ---


class PartWriter:
    """A part on its way into a folder, under a temporary name until `finish`. Leaving without it removes what is there.

    All its room is reserved before the first byte, so that ranks that share a disk cannot each take the others' last.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        """Raises OSError, ENOSPC among them."""
        self._part = part
        self._target = folder / part.save.folder
        self._target.mkdir(parents=True, exist_ok=True)
        self._temporary = self._target / f".{part.data_name}.{os.getpid()}.{threading.get_ident()}.tmp"
        self._hashes = BlockHashes(part.block_bytes)
        self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            if part.bytes:
                os.posix_fallocate(self._descriptor, 0, part.bytes)
        except OSError:
            self._remove()
            raise

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def write(self, data: memoryview) -> None:
        """Take the next bytes."""
        self._hashes.update(data)
        while len(data):
            data = data[os.write(self._descriptor, data) :]

    def finish(self) -> Part:
        """Make it a part. Raises Damaged if it is not what the part's checksums, where it has some, promised."""
        part = replace(self._part, xxh3=self._hashes.digests())
        if self._hashes.bytes != part.bytes:
            raise Damaged(f"{self._hashes.bytes} bytes were written of {part.bytes}")
        if self._part.xxh3 and self._part.xxh3 != part.xxh3:
            raise Damaged(f"rank {part.rank}'s part of {part.save.folder} was changed on its way")
        os.fsync(self._descriptor)
        (self._target / part.record_name).unlink(missing_ok=True)
        self._temporary.rename(self._target / part.data_name)
        write_atomically(self._target / part.record_name, json.dumps(part.record()))
        sync_folder(self._target.parent)
        return part

    def _remove(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._temporary.unlink(missing_ok=True)


def write_part(folder: Path, part: Part, source: FlatBytes) -> Part:
    """Write a part, durably. Returns it with its checksums. Raises OSError, and then nothing of it is left."""
    with PartWriter(folder, part) as writer:
        for block in source.blocks(part.block_bytes):
            for view in block:
                writer.write(view)
        return writer.finish()


def lacks_room(folder: Path, count: int, reserve: int = 0) -> str | None:
    """Why `count` more bytes should not be begun on this node, or None. reserve: bytes to leave free."""
    free = shutil.disk_usage(folder).free
    if free - reserve >= count:
        return None
    return f"{folder} has {free / 1e9:.3g} GB free, and {count / 1e9:.3g} GB are to be written ({reserve} B stay free)"


# --- finding and reading ---


@dataclass(frozen=True)
class Stored:
    """A part on this node, and its file."""

    part: Part
    path: Path


def list_parts(folder: Path) -> list[Stored]:
    """Whole parts in a node's folder, in a fixed order. What is torn, or lies about itself, is not in it."""
    found = []
    for save_folder in sorted(folder.iterdir()) if folder.is_dir() else []:
        save = Save.of_folder(save_folder.name)
        for record in sorted(save_folder.glob("rank-*.json")) if save is not None else []:
            part = Part.from_record(read_json(record))
            if part is None or part.save != save or part.record_name != record.name:
                continue
            path = save_folder / part.data_name
            with suppress(OSError):
                if path.stat().st_size == part.bytes:
                    found.append(Stored(part, path))
    return found


class PartReader:
    """Reads a part in pieces and verifies every block of them, several at a time."""

    def __init__(self, stored: Stored, threads: int) -> None:
        """Raises OSError."""
        self._stored = stored
        self._descriptor = os.open(stored.path, os.O_RDONLY | os.O_CLOEXEC)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="local-read")

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        os.close(self._descriptor)

    def read(self, offset: int, into: FlatBytes) -> None:
        """Fill `into` with the bytes from `offset`, where a block must begin. Raises Damaged or OSError."""
        size = self._stored.part.block_bytes
        first = offset // size
        assert offset == first * size, "verified reads begin with a block"
        for _ in self._pool.map(self._read_block, range(first, first + -(-into.bytes // size)), into.blocks(size)):
            pass

    def _read_block(self, index: int, views: Sequence[memoryview]) -> None:
        part = self._stored.part
        hashes = BlockHashes(part.block_bytes)
        offset = index * part.block_bytes
        for view in views:
            filled = 0
            while filled < len(view):
                got = os.preadv(self._descriptor, [view[filled:]], offset + filled)
                if not got:
                    raise Damaged(f"{self._stored.path}: it ends at byte {offset + filled} of {part.bytes}")
                filled += got
            offset += filled
            hashes.update(view)
        if hashes.digests() != part.xxh3[index : index + 1]:
            raise Damaged(f"{self._stored.path}: block {index} has another checksum than was saved")


def read_part(stored: Stored, into: FlatBytes, threads: int) -> None:
    """Read a whole part, each block verified as it is read. Raises Damaged or OSError; `into` then holds anything."""
    if into.bytes != stored.part.bytes:
        raise Damaged(f"{stored.path}: it has {stored.part.bytes} bytes, {into.bytes} are needed")
    with PartReader(stored, threads) as reader:
        reader.read(0, into)


# --- removing ---


def prune_parts(folder: Path, keep: Collection[str], current: Save) -> list[str]:
    """Remove every save but those named in `keep` and those that `current`'s attempt began with it or later.

    keep: folder names of the newest saves that are complete on all nodes, which one node alone cannot tell. Several
    ranks of a node may do this at once. Returns the names of what it removed.
    """

    def wanted(save: Save) -> bool:
        return save.folder in keep or (save.attempt == current.attempt and save.serial >= current.serial)

    return _remove(folder, (name for name, save in _saves(folder) if not wanted(save)))


def remove_newer(folder: Path, step: int) -> list[str]:
    """Remove saves beyond `step`, from which training goes on: their time line is abandoned. Returns their names."""
    return _remove(folder, (name for name, save in _saves(folder) if save.step > step))


def _saves(folder: Path) -> list[tuple[str, Save]]:
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [(name, save) for name in entries if (save := Save.of_folder(name)) is not None]


def _remove(folder: Path, doomed: Iterable[str]) -> list[str]:
    """Records first: a removal that is cut short leaves a torn save, which the next one removes."""
    removed = []
    for name in doomed:
        for record in (folder / name).glob("rank-*.json"):
            record.unlink(missing_ok=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        removed.append(name)
    return removed
