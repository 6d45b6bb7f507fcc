"""The ranks of one arm as processes: a time limit, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from bench.checkpoint_spec import Spec
from bench.demo import ROOT

SETTLE_S = 3.0
"""After one rank has failed the others get so long to fail by themselves: their errors may tell more."""
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """How the ranks ended. why: of the first failure, with the end of its output."""

    well: bool
    why: str = ""


def run_ranks(spec: Spec, limit_s: float) -> Ended:
    """Run all ranks of `spec` to their end, or kill them after `limit_s` seconds."""
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        ranks = [_start(spec, rank, port, log.fileno()) for rank in range(spec.world)]
        try:
            why = _wait(ranks, limit_s)
        finally:
            _end(ranks)
        log.seek(0)
        return Ended(not why, why and f"{why}: {_tail(log.read())}")


def _start(spec: Spec, rank: int, port: int, log: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.world),
        "LOCAL_WORLD_SIZE": str(spec.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1" if not spec.cuda else "8",
    }
    command = [sys.executable, "-m", "bench.arms.rank", spec.to_json()]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def _wait(ranks: list[subprocess.Popen[bytes]], limit_s: float) -> str:
    """What went wrong; empty if nothing did."""
    deadline = time.monotonic() + limit_s
    first = ""
    while any(process.poll() is None for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.returncode]
        if failed and not first:
            first = f"rank {failed[0]} ended with code {ranks[failed[0]].returncode}"
            deadline = min(deadline, time.monotonic() + SETTLE_S)
        if time.monotonic() > deadline:
            return first or f"the limit of {limit_s:.0f} s passed"
        time.sleep(POLL_S)
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    return first or (f"rank {failed[0]} ended with code {ranks[failed[0]].returncode}" if failed else "")


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End the ranks and what they started; each has a session of its own. Python's resource trackers ignore SIGTERM
    and clean up once all others are gone, hence the pause."""
    _signal(ranks, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while _signal(ranks, 0) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    _signal(ranks, signal.SIGKILL)
    for process in ranks:
        process.wait(10)


def _signal(ranks: list[subprocess.Popen[bytes]], number: int) -> bool:
    """Signal all sessions. Whether anything of them is there."""
    there = False
    for process in ranks:
        process.poll()
        try:
            os.killpg(process.pid, number)
            there = True
        except ProcessLookupError:
            pass  # nothing of it is left
    return there


def _tail(text: str, characters: int = 1500) -> str:
    return text.strip()[-characters:]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
