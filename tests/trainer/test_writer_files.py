"""Killing a writer that has not even fetched its work, again and again, costs no open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config
from trainer.checkpoint.writer import Writer

ROOT = Path(__file__).parents[2]


def _abort_at_once(rank: int, world: int, run_dir: str) -> list[int]:
    session = Session(run_dir, config(world_size=1), rank, world)
    session.checkpoints.restore()
    open_files = []
    for _ in range(4):
        session.step(5)  # a save is due, and its request is sent
        session.writer.abort()  # before the writer has imported torch
        open_files.append(len(os.listdir("/proc/self/fd")))
        session.writer.start()
        session.checkpoints._saving._save = None
    session.close()
    return open_files


@pytest.mark.timeout(60)
def test_a_writer_killed_before_it_fetched_its_work_leaves_no_file_open(tmp_path: Path) -> None:
    """torch would send the segments' descriptors, by a thread that keeps them open until they are fetched. Pipes and
    sockets of the killed writer may still be closing, hence the slack."""
    (open_files,) = run_ranks(_abort_at_once, 1, str(tmp_path))
    assert open_files[3] - open_files[0] < 16, open_files


class _InASystemCall:
    """A writer process that does not end although it was killed: the storage does not answer."""

    exitcode: int | None = None

    def __init__(self, process: Any) -> None:
        self._process = process
        self.waited_s = 0.0

    def kill(self) -> None:
        self._process.kill()

    def join(self, limit_s: float) -> None:
        self.waited_s += limit_s


@pytest.mark.timeout(60)
def test_a_restart_does_not_wait_for_a_killed_writer_that_hangs_in_the_storage() -> None:
    writer = Writer(0)
    writer.start()
    caller: Any = writer._caller
    hung = caller.process = _InASystemCall(caller.process)
    writer.abort()
    assert hung.waited_s < 1
    assert writer._dying == [hung], "it is kept, to be collected when it ends"
    writer.start()
    assert writer.pid not in (None, hung._process.pid)
    hung.exitcode = -9
    writer.abort()
    assert not writer._dying
    hung._process.join(5)


def test_ranks_may_open_as_many_files_as_the_machine_allows() -> None:
    """Sockets to every peer count too, and the usual soft limit is 1024."""
    program = (
        "import resource; from trainer.runtime import raise_open_files_limit; raise_open_files_limit(); "
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); print(soft == hard > 64)"
    )
    done = subprocess.run(
        ["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == "True", done.stderr
