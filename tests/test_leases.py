"""Leases: a reader's step is held while the reader lives, and no longer; by counters, never by two clocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.leases import DEAD_AFTER_S, Lease, held_steps


class Clock:
    """A monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def until(condition: Callable[[], Any], limit_s: float = 20) -> None:
    """Poll until it holds; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def count(lease: Lease) -> int:
    """How often it has beaten; -1 while it is being written."""
    try:
        return int(json.loads(lease.path.read_text())["count"])
    except ValueError:
        return -1


def test_a_step_is_held_while_the_reader_is_inside_and_nothing_is_left_behind(tmp_path: Path) -> None:
    memory: dict[str, Any] = {}
    with Lease(tmp_path, 30, "export"), Lease(tmp_path, 40, "verify"), Lease(tmp_path, 30, "compare"):
        assert held_steps(tmp_path, memory) == {30, 40}
    assert held_steps(tmp_path, memory) == set()
    assert list((tmp_path / "leases").iterdir()) == []
    assert memory == {}


def test_the_file_says_who_reads(tmp_path: Path) -> None:
    with Lease(tmp_path, 30, "export") as lease:
        record = json.loads(lease.path.read_text())
    assert record == {"step": 30, "who": "export", "host": os.uname().nodename, "pid": os.getpid(), "count": 0}


def test_a_reader_that_beats_is_held_for_ever(tmp_path: Path) -> None:
    clock, memory = Clock(), dict[str, Any]()
    with Lease(tmp_path, 30, "export", beat_s=0.02) as lease:
        for _ in range(5):
            before = count(lease)
            until(lambda before=before: count(lease) > before)  # type: ignore[misc]
            assert held_steps(tmp_path, memory, clock) == {30}
            clock.now += DEAD_AFTER_S + 1


_HOLD = (
    "import sys, time; from pathlib import Path; from holdfast.leases import Lease;"
    "lease = Lease(Path(sys.argv[1]), 30, 'killed', beat_s=0.02); lease.__enter__(); print('in', flush=True);"
    "time.sleep(60)"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_reader_is_ignored_after_a_minute_of_the_observers_clock_and_its_file_removed(
    tmp_path: Path, how: signal.Signals
) -> None:
    clock, memory = Clock(), dict[str, Any]()
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"in\n"
        os.kill(reader.pid, how)
        os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert held_steps(tmp_path, memory, clock) == {30}
        clock.now += DEAD_AFTER_S
        assert held_steps(tmp_path, memory, clock) == {30}
        clock.now += 1
        assert held_steps(tmp_path, memory, clock) == set()
        assert list((tmp_path / "leases").iterdir()) == []
        if how == signal.SIGSTOP:  # it was not dead after all: it says so again
            os.kill(reader.pid, signal.SIGCONT)
            until(lambda: held_steps(tmp_path, memory, clock) == {30})
        reader.kill()


def test_an_observer_that_comes_late_gives_a_dead_reader_one_minute_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "30-host-1-1.json").write_text("{}")
    os.utime(tmp_path / "leases" / "30-host-1-1.json", (0, 0))  # as old as can be; nobody looks
    assert held_steps(tmp_path, {}, Clock()) == {30}


def test_what_is_no_lease_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "notes.json").write_text("")
    clock, memory = Clock(), dict[str, Any]()
    for _ in range(2):
        assert held_steps(tmp_path, memory, clock) == set()
        clock.now += 1000
    assert (tmp_path / "leases" / "notes.json").exists()


def test_a_folder_that_cannot_be_written_is_read_without_a_lease_and_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "leases").write_text("in the way")
    with Lease(tmp_path, 30, "export") as lease:
        assert "a prune may remove the step while it is read" in caplog.text
    assert not lease.path.exists()
