"""The ranks of a bench as processes: a time limit, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.demo import ROOT

SETTLE_S = 3.0
"""After one rank has failed the others get so long to fail by themselves: their errors may tell more."""
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
GONE_S = 60.0
"""After SIGKILL, for all together: a process that has pinned host memory or holds a GPU is gone only when kernel and
driver have taken it apart."""
POLL_S = 0.05
FITS_NOT = re.compile(
    r"OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory"
)
"""How torch's allocator, CUDA, cuBLAS and NCCL say that a GPU's memory is full."""
FAILURES = (FITS_NOT, re.compile("Error:"))
"""What the line looks like that says why, the more telling first."""
MOST_FAILURES = 2
"""What has failed so often in a row is not tried again."""


@dataclass(frozen=True)
class Ended:
    """How the ranks ended. why: of the first failure, with the end of its output. late: they ran until the limit."""

    well: bool
    why: str = ""
    late: bool = False


def fits_not(why: str) -> bool:
    """Whether it failed for want of a GPU's memory: no further try would end otherwise."""
    return FITS_NOT.search(why) is not None


def given_up(failures: Sequence[Mapping[str, object]]) -> str:
    """Why what failed so is not tried again, or nothing. failures: raw lines, those since it last went well; `error`:
    why; `cut`: there was less time than such a one may take, which says nothing of it."""
    if any(fits_not(str(line["error"])) for line in failures):
        return "does not fit"
    count = sum(not line.get("cut") for line in failures)
    return f"given up after {count} failures (another --raw tries it again)" if count >= MOST_FAILURES else ""


def run_ranks(
    module: str, order: str, world: int, limit_s: float, *, cuda: bool, more: Mapping[str, str] | None = None
) -> tuple[Ended, str]:
    """Run `python -m MODULE ORDER` on all ranks to their end, or kill them after `limit_s` seconds. Returns how they
    ended, and what rank 0 has printed. more: environment of all of them."""
    port = _free_port()
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as said:
        ranks = []
        try:
            for rank in range(world):
                environment = _environment(rank, world, port, cuda) | dict(more or {})
                command = [sys.executable, "-m", module, order]
                output = said.fileno() if rank == 0 else errors.fileno()
                ranks.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=environment,
                        stdout=output,
                        stderr=errors.fileno(),
                        start_new_session=True,
                    )
                )
            why, late = _wait(ranks, limit_s)
        finally:
            left = _end(ranks)
        errors.seek(0)
        said.seek(0)
        ended = Ended(not why, f"{why}: {telling(errors.read())}", late) if why else Ended(True)
        return (replace(ended, well=False, why=f"{ended.why}; {left}".lstrip("; ")) if left else ended), said.read()


def _environment(rank: int, world: int, port: int, cuda: bool) -> dict[str, str]:
    """One rank's. GPU memory is had as the pods of our manifest have it (holdfast/launch.py)."""
    return dict(os.environ) | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "8" if cuda else "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }


def telling(text: str) -> str:
    """The line that says why, or else the end."""
    lines = text.strip().splitlines()
    for failure in FAILURES:
        found = next((line for line in reversed(lines) if failure.search(line)), None)
        if found is not None:
            return found.strip()[:600]
    return text.strip()[-600:]


def _wait(ranks: list[subprocess.Popen[bytes]], limit_s: float) -> tuple[str, bool]:
    """What went wrong, empty if nothing did; whether it was the limit."""
    deadline = time.monotonic() + limit_s
    first = ""
    while any(process.poll() is None for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.returncode]
        if failed and not first:
            first = f"rank {failed[0]} ended with code {ranks[failed[0]].returncode}"
            deadline = min(deadline, time.monotonic() + SETTLE_S)
        if time.monotonic() > deadline:
            return first or f"the limit of {limit_s:.0f} s passed", not first
        time.sleep(POLL_S)
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    return first or (f"rank {failed[0]} ended with code {ranks[failed[0]].returncode}" if failed else ""), False


def _end(ranks: list[subprocess.Popen[bytes]]) -> str:
    """End the ranks and what they started; each has a session of its own. Python's resource trackers ignore SIGTERM
    and clean up once all others are gone, hence the pause. Returns which ranks are still there, in words."""
    _signal(ranks, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while _signal(ranks, 0) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    _signal(ranks, signal.SIGKILL)
    deadline, left = time.monotonic() + GONE_S, []
    for rank, process in enumerate(ranks):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            left.append(f"rank {rank} (process {process.pid})")
    return f"still there {GONE_S:.0f} s after SIGKILL: {', '.join(left)}" if left else ""


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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
