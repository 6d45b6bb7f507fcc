"""Markers and block checksums: what counts as committed, and that no change of a file goes unnoticed."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

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
    assert look(tmp_path) == Found((20, 100), ("step-00000030.g1-c0-r0-s1.partial", "step-00000040", "step-00000050"))


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
