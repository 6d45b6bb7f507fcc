"""Run directories with committed steps of a few kilobytes, and the command as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint_folder import BlockHashes, FileRecord, Marker
from holdfast.config import names

ROOT = Path(__file__).parents[2]
BLOCK = 1000
"""Bytes per checksum in these checkpoints; real ones have 8 MiB."""


def content(seed: int, size: int) -> bytes:
    return bytes((seed * 7 + place * 31 + place // 256) % 256 for place in range(size))


def commit(run: Path, step: int, world_size: int = 2, size: int = 10_500) -> Path:
    """A committed step: a file per rank, and the two descriptions."""
    folder = run / names.CHECKPOINTS / names.step_folder(step)
    folder.mkdir(parents=True)
    sizes = {f"__{rank}_0.distcp": size for rank in range(world_size)} | {".metadata": 1500, "state.json": 300}
    records = []
    for index, (name, count) in enumerate(sizes.items()):
        data = content(step + index, count)
        (folder / name).write_bytes(data)
        hashes = BlockHashes(BLOCK)
        hashes.update(data)
        records.append(FileRecord(name, count, hashes.digests()))
    marker = Marker(step, "g1-c0-r0", 1, world_size, tuple(records), BLOCK)
    (folder / names.COMMITTED).write_text(marker.text())
    (folder.parent / names.LATEST).write_text(folder.name)
    return folder


def marker_of(folder: Path) -> Marker:
    found = Marker.from_record(json.loads((folder / names.COMMITTED).read_text()))
    assert found is not None
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def holdfast(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "checkpoint", *arguments]
    environment = os.environ | variables
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


Said = pytest.CaptureFixture[str]
