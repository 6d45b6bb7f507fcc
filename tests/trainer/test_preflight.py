"""Preflight: an unfit node is named with what, how much, and what to do; a fit one is not held up."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.config import load_profile, names
from tests.trainer.conftest import Configure
from trainer import preflight

HUGE = ("model.hidden_size=65536", "model.intermediate_size=262144", "model.layers=1000")
"""Its staged copy takes terabytes."""


def test_a_fit_node_has_no_findings_and_nothing_is_left_behind(configure: Configure, tmp_path: Path) -> None:
    since = time.monotonic()
    assert preflight.findings(configure(), tmp_path / "runs" / "new") == []
    assert preflight.warnings(configure(), tmp_path / "not" / "there" / "yet") == []
    assert time.monotonic() - since < 1
    assert list((tmp_path / "runs" / "new").iterdir()) == []


def test_storage_that_cannot_be_written_is_found(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (finding,) = preflight.findings(configure(), tmp_path / "file" / "run")
    assert finding.startswith(f"{tmp_path}/file/run: not writable (") and "mount and free space" in finding


def test_storage_that_hangs_is_found_within_the_limit(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung mount keeps a process in the kernel; here the sync never returns."""
    over = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: over.wait(30))
    monkeypatch.setattr(preflight, "STORAGE_LIMIT_S", 1.0)
    since = time.monotonic()
    (finding,) = preflight.findings(configure(), tmp_path)
    assert 1 <= time.monotonic() - since < 3
    assert f"{tmp_path}: no answer within 1 s" in finding
    over.set()


def test_shared_memory_too_small_for_the_staged_copy_is_found_with_both_sizes(
    configure: Configure, tmp_path: Path
) -> None:
    (finding,) = preflight.findings(configure(*HUGE), tmp_path, shm=Path("/dev/shm"))
    assert "/dev/shm has " in finding and "staging needs " in finding and "sizeLimit" in finding
    (finding,) = preflight.findings(configure(), tmp_path, shm=tmp_path / "missing")
    assert "missing: No such file" in finding and "Memory" in finding
    assert preflight.findings(configure(*HUGE, "checkpoint.mode=off"), tmp_path) == []


def test_a_clock_that_was_never_set_is_found(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    (finding,) = preflight.findings(configure(), tmp_path)
    assert finding == "the clock says 1970-01-02. Set the node's time (chrony)."


def test_too_few_gpus_are_found_and_all_findings_come_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    (tmp_path / "file").touch()
    found = preflight.findings(load_profile("llama3-8b-p5x2"), tmp_path / "file" / "run", shm=tmp_path / "missing")
    assert "3 GPUs are visible, cluster.ranks_per_node=8 are needed" in found[0]
    assert any("missing: No such file" in finding for finding in found) and "not writable" in found[-1]


def test_storage_with_room_for_fewer_checkpoints_than_are_kept_is_a_warning(
    configure: Configure, tmp_path: Path
) -> None:
    """case-08, before the first save."""
    config = configure("checkpoint.keep_last=1000000000")
    (warning,) = preflight.warnings(config, tmp_path / "runs")
    assert f"{tmp_path}/runs: " in warning and "GB free, but checkpoint.keep_last=1000000000" in warning
    assert preflight.findings(config, tmp_path) == []
    assert preflight.warnings(configure("checkpoint.keep_last=1000000000", "checkpoint.mode=off"), tmp_path) == []


def test_a_node_that_somebody_has_marked_or_whose_own_volume_is_broken_is_unfit(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "local"
    monkeypatch.setenv(names.ENV_NODE_VOLUME, str(volume))
    assert preflight.findings(configure(), tmp_path / "run") == []
    (volume / names.UNFIT_MARK).write_text("Xid 79: GPU 3\n has fallen off the bus")
    (finding,) = preflight.findings(configure(), tmp_path / "run")
    assert finding.startswith(f"{volume}/unfit says: Xid 79: GPU 3 has fallen off the bus. ")
    (volume / names.UNFIT_MARK).unlink()
    volume.rmdir()
    volume.touch()
    (finding,) = preflight.findings(configure(), tmp_path / "run")
    assert finding.startswith(f"{volume}: not writable (")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_is_no_fault_of_the_node(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Saves fail until there is room, which training survives; to give up the node would not make any."""

    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("trainer.preflight.os.fsync", full)
    assert preflight.findings(configure(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
