"""Markers and block checksums: what counts as committed, and that no change of a file goes unnoticed."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast import checkpoint_folder
from holdfast.checkpoint_folder import (
    BlockHashes,
    FileRecord,
    Found,
    Marker,
    damage,
    look,
    read_exactly,
    read_marker,
)

BLOCK = 16


def record(name: str, content: bytes) -> FileRecord:
    """A record with small blocks."""
    hashes = BlockHashes(BLOCK)
    hashes.update(content)
    return FileRecord(name, len(content), hashes.digests())


def commit(folder: Path, step: int, **contents: bytes) -> Marker:
    """A committed step of these files."""
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    marker = Marker(step, "g1-c0-r0", 1, 2, tuple(record(*item) for item in contents.items()), BLOCK)
    (folder / "COMMITTED.json").write_text(marker.text())
    return marker


@given(st.binary(max_size=100), st.lists(st.integers(1, 40)))
def test_checksums_of_blocks_do_not_depend_on_how_the_bytes_were_written(content: bytes, pieces: list[int]) -> None:
    hashes, rest = BlockHashes(BLOCK), content
    for size in pieces:
        hashes.update(rest[:size])
        rest = rest[size:]
    hashes.update(memoryview(rest))
    expected = [xxhash.xxh3_64(content[at : at + BLOCK]).hexdigest() for at in range(0, len(content), BLOCK)]
    assert hashes.bytes == len(content)
    assert list(hashes.digests()) == expected


def test_a_marker_survives_its_text() -> None:
    marker = Marker(30, "g1-c0-r0", 1, 2, (record("a", b"x" * 40), record("b", b"")), BLOCK)
    assert Marker.from_record(json.loads(marker.text())) == marker
    assert marker.bytes == 40
    assert marker.file("a") == marker.files[0]
    assert marker.file("c") is None


def _without(key: str) -> Any:
    def change(stored: dict[str, Any]) -> None:
        del stored[key]

    return change


def _with(**values: Any) -> Any:
    def change(stored: dict[str, Any]) -> None:
        stored.update(values)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _with(schema=1),
        _without("schema"),
        _without("files"),
        _without("attempt"),
        _with(step="thirty"),
        _with(files=[{"name": "a", "bytes": 40}]),
        _with(files=[{"name": "a", "bytes": 40, "xxh3": []}]),
        _with(block_bytes=0),
        _with(block_bytes=8),
        _with(step=31),
    ],
)
def test_a_marker_that_is_incomplete_or_of_another_step_is_none(tmp_path: Path, change: Any) -> None:
    folder = tmp_path / "step-00000030"
    stored = json.loads(commit(folder, 30, a=b"x" * 40).text())
    assert read_marker(folder) is not None
    change(stored)
    (folder / "COMMITTED.json").write_text(json.dumps(stored))
    assert read_marker(folder) is None


def test_look_tells_committed_steps_from_everything_else(tmp_path: Path) -> None:
    assert look(tmp_path / "absent") == Found((), ())
    commit(tmp_path / "step-00000100", 100, a=b"1")
    commit(tmp_path / "step-00000020", 20, a=b"1")
    commit(tmp_path / "step-00000030.g1-c0-r0-s1.partial", 30, a=b"1")
    (tmp_path / "step-00000040").mkdir()
    commit(tmp_path / "step-00000050", 51, a=b"1")
    commit(tmp_path / "leases", 60, a=b"1")
    (tmp_path / "LATEST").write_text("step-00000100")
    (tmp_path / "step-00000070").write_text("a file")
    commit(tmp_path / "step-60", 60, a=b"1")
    unfinished = ("step-00000030.g1-c0-r0-s1.partial", "step-00000040", "step-60")
    assert look(tmp_path) == Found((20, 100), unfinished, damaged=(50,))


def _cut(marker: Path) -> None:
    os.truncate(marker, 20)


def _emptied(marker: Path) -> None:
    os.truncate(marker, 0)


def _of_another_version(marker: Path) -> None:
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"schema": 1}))


def _a_link_to_nothing(marker: Path) -> None:
    marker.unlink()
    marker.symlink_to("nowhere")


@pytest.mark.parametrize("harm", [_cut, _emptied, _of_another_version, _a_link_to_nothing])
def test_a_marker_that_is_there_and_cannot_be_read_makes_a_step_damaged_and_not_unfinished(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    for step in (20, 30):
        commit(tmp_path / f"step-{step:08d}", step, a=b"1")
    harm(tmp_path / "step-00000030" / "COMMITTED.json")
    assert look(tmp_path) == Found((20,), (), damaged=(30,))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_storage_that_refuses_to_show_a_marker_does_not_make_its_step_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Neither the file nor its entry in the folder can be read."""
    commit(tmp_path / "step-00000030", 30, a=b"1")
    really_open, really_lstat = io.open, os.lstat

    def refused(path: Any) -> None:
        if str(path).endswith("COMMITTED.json"):
            raise OSError(code, os.strerror(code), str(path))

    def lstat(path: Any, **kwargs: Any) -> Any:
        refused(path)
        return really_lstat(path, **kwargs)

    def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        refused(path)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(os, "lstat", lstat)
    assert look(tmp_path) == Found((), (), damaged=(30,))


def test_a_step_that_is_committed_or_deleted_while_it_is_looked_at_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step-00000030"
    commit(folder, 30, a=b"1")
    reads = [None, read_marker(folder)]
    monkeypatch.setattr(checkpoint_folder, "read_marker", lambda folder: reads.pop(0))
    assert look(tmp_path) == Found((30,), ())
    reads = [None, None]

    def deleted_at_the_second_read(folder: Path) -> None:
        reads.pop()
        if not reads:
            (folder / "COMMITTED.json").unlink()

    monkeypatch.setattr(checkpoint_folder, "read_marker", deleted_at_the_second_read)
    assert look(tmp_path) == Found((), ("step-00000030",))


def test_whole_files_show_no_damage(tmp_path: Path) -> None:
    marker = commit(tmp_path / "step-00000030", 30, a=b"x" * 100, b=b"", c=b"y" * BLOCK)
    assert list(damage(tmp_path / "step-00000030", marker.files, BLOCK)) == []


@given(place=st.integers(0, 99), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_with_its_block(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("flip") / "step-00000030"
    content = bytearray(range(100))
    marker = commit(folder, 30, a=bytes(content))
    content[place] ^= 1 << bit
    (folder / "a").write_bytes(content)
    block = place // BLOCK
    (message,) = damage(folder, marker.files, BLOCK)
    assert message.startswith(f"step-00000030/a: block {block} (from byte {block * BLOCK}) has another checksum")


def test_sampling_looks_at_each_nth_block_and_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000030"
    marker = commit(folder, 30, a=bytes(11 * BLOCK))
    found = []
    for block in range(11):
        content = bytearray(11 * BLOCK)
        content[block * BLOCK] = 1
        (folder / "a").write_bytes(content)
        found += [block] if list(damage(folder, marker.files, BLOCK, every=4)) else []
    assert found == [0, 4, 8, 10]


def test_sizes_only_looks_at_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000030"
    marker = commit(folder, 30, a=b"x" * 40, b=b"y" * 40, c=b"z")
    (folder / "a").write_bytes(b"y" * 40)
    assert list(damage(folder, marker.files, BLOCK, every=None)) == []
    os.truncate(folder / "b", 39)
    (folder / "c").unlink()
    assert list(damage(folder, marker.files, BLOCK, every=None)) == [
        "step-00000030/b: 39 bytes, 40 were committed",
        "step-00000030/c: No such file or directory",
    ]


class _Slow(io.BytesIO):
    def readinto(self, target: Any, /) -> int:
        return super().readinto(memoryview(target)[:3])


def test_short_reads_are_put_together_and_the_end_is_the_end() -> None:
    assert read_exactly(_Slow(b"0123456789"), 7) == b"0123456"
    assert read_exactly(_Slow(b"0123456789"), 20) == b"0123456789"
    assert read_exactly(_Slow(b""), 20) == b""
