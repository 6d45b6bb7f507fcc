"""A storage that is full, read-only or failing costs saves, never training, and says what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import own_mounts

BREAK_FSYNC = """
import errno, os, sys
real = os.fsync
def fsync(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.endswith(".distcp") and os.path.exists(os.environ["BROKEN"]):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    return real(descriptor)
os.fsync = fsync
"""
"""Every process of the test runs this at its start. An I/O error shows when data is flushed, hence in fsync."""


def _saves(kind: str, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "sitecustomize.py").write_text(BREAK_FSYNC)
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "tests.trainer.storage_faults", kind, str(run_dir)]
    environment = {"PYTHONPATH": f"{tmp_path}:{own_mounts.ROOT}", "BROKEN": str(run_dir / "broken")}
    printed = own_mounts.run(command, environment, timeout_s=100)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("full", "GB are free, a checkpoint takes"),
        ("read-only", "Read-only file system"),
        ("failing", "Input/output error"),
    ],
)
@own_mounts.needed
@pytest.mark.timeout(120)
def test_storage_that_refuses_costs_the_saves_in_that_time_and_nothing_else(
    tmp_path: Path, kind: str, says: str
) -> None:
    """case-08. The writer lives on: a new one would cost seconds, at each save until somebody frees the disk."""
    outcome = _saves(kind, tmp_path)
    assert outcome["during"] == [10]
    assert outcome["after"] == [10, 30]
    assert len(outcome["errors"]) == 1
    assert says in outcome["errors"][0]
    assert outcome["refused_s"] < 10
    assert outcome["same_writer"]
    if kind == "full":
        assert outcome["left"] == [], "not a byte is written where the checkpoint does not fit"
