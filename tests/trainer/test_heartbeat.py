"""A rank and its rank monitor, NVRx's own: who holds the connection, and what a rank does when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from holdfast.config import names
from trainer.restart.heartbeat import forget_monitored, is_monitored, monitor_is_gone

ROOT = Path(__file__).parents[2]
LIMIT_S = 40.0
"""A rank imports torch first. NVRx lets a second connection wait for 180 s while the first one is open."""


class Monitored:
    """A rank process. Use as a context manager: it and what it forked end with the body."""

    def __init__(self, socket: Path, scratch: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.monitored_rank"],
            cwd=ROOT,
            env={**os.environ, **self.environment(socket, scratch)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def environment(socket: Path, scratch: Path) -> dict[str, str]:
        """What it is told beside the test's own environment."""
        one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        return {**one, "FT_RANK_MONITOR_IPC_SOCKET": str(socket), names.ENV_SCRATCH: str(scratch)}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def says(self) -> str:
        """Its next line."""
        return self._lines.get(timeout=LIMIT_S)

    def go_on(self) -> None:
        """Give it the line for which it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Monitored:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hf-") as path:
        yield Path(path)


@pytest.fixture
def monitor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseProcess]:
    """NVRx's rank monitor, as ft_launcher starts it."""
    from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

    monkeypatch.setenv("TMPDIR", str(folder))  # its other socket
    sections = dict.fromkeys((names.SECTION_INIT, names.SECTION_STEP), 600.0)
    process: BaseProcess = RankMonitorServer.run_in_subprocess(
        FaultToleranceConfig(rank_section_timeouts=sections),
        str(folder / "monitor.sock"),
        mp_ctx=multiprocessing.get_context("spawn"),
    )
    yield process
    process.kill()
    process.join(10)


def test_what_a_dead_rank_has_forked_does_not_keep_the_next_rank_from_its_monitor(
    monitor: BaseProcess, folder: Path
) -> None:
    """Seed 157 of the schedules: NVRx's in-process monitor outlived its rank, and the ranks after it went unwatched."""
    socket = folder / "monitor.sock"
    with Monitored(socket, folder) as first:
        child = int(first.says().removeprefix("connected "))
        first.process.kill()
        first.process.wait(10)
        os.kill(child, 0)  # it lives
        with Monitored(socket, folder) as second:
            assert second.says().startswith("connected ")
            os.kill(child, 0)
            assert is_monitored(folder, second.process.pid)
            second.go_on()
            assert second.says() == "entered"


def test_a_rank_says_that_its_monitor_is_gone_and_the_next_one_leaves_word_for_the_supervisor(
    monitor: BaseProcess, folder: Path
) -> None:
    socket = folder / "monitor.sock"
    with Monitored(socket, folder) as first:
        assert first.says().startswith("connected ")
        monitor.kill()
        monitor.join(10)
        first.go_on()
        assert first.says().startswith("lost: the rank monitor of this node cannot be reached: ")
    assert not monitor_is_gone(folder), "a new process may reach it"
    with Monitored(socket, folder) as second:
        assert second.says().startswith("lost: the rank monitor of this node cannot be reached: ")
    assert monitor_is_gone(folder)
    forget_monitored(folder)
    assert not monitor_is_gone(folder)


def test_a_rank_does_not_take_a_monitor_for_one_that_takes_no_section(
    monitor: BaseProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRx 0.6.0's monitor is lost for good when two connections end without a section in between. It still answers."""
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    socket = folder / "monitor.sock"
    with Monitored(socket, folder) as first:
        assert first.says().startswith("connected ")
    for name, value in Monitored.environment(socket, folder).items():
        monkeypatch.setenv(name, value)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.shutdown_workload_monitoring()  # a rank that is killed before its first section
    with Monitored(socket, folder) as second:
        assert second.says().startswith("lost: the rank monitor of this node cannot be reached: ")
    assert monitor_is_gone(folder) and not is_monitored(folder, second.process.pid)
