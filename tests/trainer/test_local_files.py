"""Parts of the local tier on a node's disk: whole or not there, verified as they are read, pruned by name."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.local_parts import BLOCK, draft, equal, saved, some_bytes, zeros
from trainer.checkpoint.local import files
from trainer.checkpoint.local.files import Damaged, list_parts, node_id, prune_parts, read_part, remove_newer
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part, Save, layout_hash

SAVE = Save(30, "g1-c0-r0", 2)
SIZES = (5 * BLOCK + 7, 1, 2 * BLOCK - 3, 4)
"""Blocks lie across segments, and the last one is short."""


def test_a_part_comes_back_bit_for_bit_across_segment_borders(tmp_path: Path) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path, SAVE, 3, 4, segments)
    (stored,) = list_parts(tmp_path)
    assert stored.part == part
    assert (stored.part.save, stored.part.rank, stored.part.world_size) == (SAVE, 3, 4)
    assert stored.path.read_bytes() == b"".join(segment.numpy().tobytes() for segment in segments)
    into = zeros(*reversed(SIZES))
    read_part(stored, FlatBytes(into), threads=3)
    assert equal([torch.cat(into)], [torch.cat(segments)])


def test_a_rank_without_bytes_has_a_part_too(tmp_path: Path) -> None:
    saved(tmp_path, SAVE, 0, 1, [])
    (stored,) = list_parts(tmp_path)
    read_part(stored, FlatBytes([]), threads=1)


def _flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("offset", [0, BLOCK, sum(SIZES) - 1])
def test_one_flipped_bit_is_found_when_it_is_read(tmp_path: Path, offset: int) -> None:
    saved(tmp_path, SAVE, 0, 1, some_bytes(1, *SIZES))
    (stored,) = list_parts(tmp_path)
    _flip(stored.path, offset)
    with pytest.raises(Damaged, match=f"block {offset // BLOCK} has another checksum"):
        read_part(stored, FlatBytes(zeros(*SIZES)), threads=2)


def _truncate(folder: Path) -> None:
    os.truncate(folder / "rank-0.bin", 10)


def _other_rank(folder: Path) -> None:
    (folder / "rank-0.json").rename(folder / "rank-1.json")
    (folder / "rank-0.bin").rename(folder / "rank-1.bin")


def _other_step(folder: Path) -> None:
    folder.rename(folder.with_name("step-00000040.g1-c0-r0-s2"))


def _edit(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        record = json.loads((folder / "rank-0.json").read_text())
        (folder / "rank-0.json").write_text(json.dumps(record | changes))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _other_rank,
        _other_step,
        lambda folder: (folder / "rank-0.json").unlink(),
        lambda folder: (folder / "rank-0.bin").unlink(),
        lambda folder: os.truncate(folder / "rank-0.json", 40),
        _edit(schema=2),
        _edit(attempt="../../x"),
        _edit(rank=-1),
        _edit(xxh3=[]),
        _edit(block_bytes=0),
    ],
)
def test_what_is_torn_or_lies_about_itself_is_not_a_part(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    saved(tmp_path, SAVE, 0, 2, some_bytes(1, *SIZES))
    assert len(list_parts(tmp_path)) == 1
    damage(tmp_path / SAVE.folder)
    assert list_parts(tmp_path) == []


def test_other_things_in_the_folder_are_no_parts_and_no_errors(tmp_path: Path) -> None:
    node_id(tmp_path)
    (tmp_path / "step-00000030").mkdir()
    (tmp_path / "step-00000030.g1-c0-r0-s2").write_text("a file")
    assert list_parts(tmp_path) == []
    assert list_parts(tmp_path / "absent") == []


def test_a_node_keeps_its_name(tmp_path: Path) -> None:
    names = {node_id(tmp_path / "a"), node_id(tmp_path / "a"), node_id(tmp_path / "b")}
    assert len(names) == 2


def _write_for_ever(folder: str) -> None:
    segments = some_bytes(2, 64 * BLOCK)
    serial = 0
    while True:
        serial += 1
        saved(Path(folder), Save(10, "g1-c0-r0", serial), 0, 1, segments)


def test_a_writer_killed_at_any_moment_leaves_whole_parts_or_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for seed in range(8):
        folder = tmp_path / str(seed)
        process = context.Process(target=_write_for_ever, args=(str(folder),))
        process.start()
        deadline = time.monotonic() + 20
        while not list_parts(folder) and time.monotonic() < deadline:
            time.sleep(0.001 * (seed + 1))
        process.kill()
        process.join(10)
        found = list_parts(folder)
        assert found
        for stored in found:
            read_part(stored, FlatBytes(zeros(64 * BLOCK)), threads=2)


def test_a_disk_that_is_too_small_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        saved(tmp_path, SAVE, 0, 1, some_bytes(1, *SIZES))
    assert list((tmp_path / SAVE.folder).iterdir()) == []


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, data: Any) -> int:
        if writes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        writes.append(1)
        return real(descriptor, data)

    writes: list[int] = []
    real = os.write
    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="Input/output error"):
        saved(tmp_path, SAVE, 0, 1, some_bytes(1, *SIZES))
    assert list((tmp_path / SAVE.folder).iterdir()) == []


def test_fewer_bytes_than_announced_are_no_part(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="bytes were written"), files.PartWriter(tmp_path, draft(SAVE, 0, 1, 10)) as part:
        part.write(memoryview(b"12345"))
        part.finish()
    assert list_parts(tmp_path) == []


def test_the_gate_names_what_is_free_and_what_is_wanted(tmp_path: Path) -> None:
    assert files.lacks_room(tmp_path, 1) is None
    assert "GB free" in str(files.lacks_room(tmp_path, 1 << 60))
    assert files.lacks_room(tmp_path, 1, reserve=1 << 60)


def test_pruning_keeps_named_saves_and_the_present_ones_only(tmp_path: Path) -> None:
    old, kept, failed, now, next_ = (Save(step, "g1-c0-r0", step // 10) for step in (10, 20, 30, 40, 50))
    stale = Save(60, "g0-c0-r0", 6)
    for save in (old, kept, failed, now, next_, stale):
        saved(tmp_path, save, 0, 1, some_bytes(1, 10))
    (tmp_path / old.folder / ".rank-0.bin.1.tmp").write_text("left by a kill")
    removed = prune_parts(tmp_path, [kept.folder], now)
    assert removed == [old.folder, failed.folder, stale.folder]
    assert [stored.part.save for stored in list_parts(tmp_path)] == [kept, now, next_]
    assert not (tmp_path / old.folder).exists()


def test_a_time_line_that_was_left_is_removed(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        saved(tmp_path, Save(step, "g1-c0-r0", step), 0, 1, some_bytes(1, 10))
    assert remove_newer(tmp_path, 20) == [Save(30, "g1-c0-r0", 30).folder]
    assert [stored.part.save.step for stored in list_parts(tmp_path)] == [10, 20]


def test_layouts_are_told_apart_by_content_not_by_order() -> None:
    assert layout_hash({"a": [1, 2], "b": 3}) == layout_hash({"b": 3, "a": [1, 2]})
    assert layout_hash({"a": [1, 2]}) != layout_hash({"a": [2, 1]})


def test_a_record_survives_the_way_to_text_and_back() -> None:
    part = Part(SAVE, 1, 2, "x", 3 * BLOCK, ("a", "b", "c"), BLOCK)
    assert Part.from_record(json.loads(json.dumps(part.record()))) == part
