"""Run a function on several real processes that form a gloo process group: a time limit, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

_SETTLE_S = 2.0
"""After one rank has failed the others get so long to fail by themselves: their errors may tell more."""


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60, backend: str = "gloo"
) -> list[Any]:
    """Call `function(rank, world_size, *args)` in `world_size` processes; returns the results by rank.

    function: a module-level function; arguments and results must pickle. The default process group exists, and each
    process has its own working folder, which is also its TMPDIR. The store listens on a port that the kernel chose, so
    runs side by side never meet. Raises AssertionError with the traceback of every rank that failed, TimeoutError
    naming the ranks that were still running after `timeout_s`. backend: GPU tests give "cpu:gloo,cuda:nccl".
    """
    import torch.distributed as dist

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="gloo-") as folder:
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        ranks = [
            context.Process(
                target=_rank, args=(rank, world_size, store.port, Path(folder), timeout_s, backend, function, args)
            )
            for rank in range(world_size)
        ]
        try:
            for process in ranks:
                process.start()
            _wait(ranks, timeout_s)
            _raise_failures(ranks, Path(folder))
            return [pickle.loads((Path(folder) / f"{rank}.result").read_bytes()) for rank in range(world_size)]
        finally:
            _end(ranks)


def whole(value: torch.Tensor) -> torch.Tensor:
    """The full tensor that all ranks hold parts of. Collective."""
    from torch.distributed.tensor import DTensor

    assert isinstance(value, DTensor)
    return value.full_tensor()


def _rank(
    rank: int, world_size: int, port: int, folder: Path, timeout_s: float, backend: str, function: Any, args: Any
) -> None:
    own = folder / f"rank-{rank}"
    own.mkdir()
    os.chdir(own)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        TMPDIR=str(own),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    tempfile.tempdir = None  # so that TMPDIR counts
    code = 0
    try:
        with _group(rank, world_size, port, timeout_s, backend):
            result = function(rank, world_size, *args)
        (folder / f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:  # noqa: BLE001  whatever it is, the test has to see it
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        traceback.print_exc()
        code = 1
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once, as the trainer does. The interpreter's own end is a race: a thread of torch's that wants the lock
    meanwhile is unwound through C++ that allows no such thing, and the process ends by SIGABRT.
    """
    for child in multiprocessing.active_children():
        child.kill()
        child.join(5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _group(rank: int, world_size: int, port: int, timeout_s: float, backend: str) -> Iterator[None]:
    from trainer.imports import collector_paused

    with collector_paused():
        import torch
        import torch.distributed as dist
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout_s)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    yield
    dist.destroy_process_group()


def _wait(ranks: Sequence[BaseProcess], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    settling = False
    while any(process.exitcode is None for process in ranks):
        if not settling and any(process.exitcode for process in ranks):
            settling = True
            deadline = min(deadline, time.monotonic() + _SETTLE_S)
        if time.monotonic() > deadline:
            if settling:
                return
            late = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
            raise TimeoutError(f"ranks {late} were still running after {timeout_s} s")
        time.sleep(0.01)


def _raise_failures(ranks: Sequence[BaseProcess], folder: Path) -> None:
    failures = []
    for rank, process in enumerate(ranks):
        if process.exitcode != 0:
            error = folder / f"{rank}.error"
            reason = error.read_text() if error.exists() else f"exit code {process.exitcode}"
            failures.append(f"rank {rank}: {reason}")
    assert not failures, "\n".join(failures)


def _end(ranks: Sequence[BaseProcess]) -> None:
    for process in ranks:
        if process.pid is not None:
            process.kill()
            process.join(10)
            process.close()
