"""What happens in the writer process while it does one request. The request itself is the real one."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.faults.stored import flip_in, flip_in_memory

FULL = "/dev/full"
"""Takes no byte: the kernel answers each write with ENOSPC."""
FILES = 64
"""Tensor files of a rank that are led to FULL: more than checkpoint.writer_threads gives any."""
NOBODY = 65534
"""The user that owns nothing."""


def under(
    kind: str, for_s: float, rank: int, seed: str, folder: str, function: Callable[..., Any], *arguments: Any
) -> Any:
    """function(*arguments), a request about the save in `folder`, with the fault. Runs in the writer process."""
    with ACTS[kind](for_s, rank, Path(folder), seed):
        return function(*arguments)


@contextmanager
def _slow(for_s: float, _rank: int, _folder: Path, _seed: str) -> Iterator[None]:
    """The first flush takes longer."""
    with _at_first_flush(lambda: time.sleep(for_s)):
        yield


@contextmanager
def _dead(_for_s: float, _rank: int, _folder: Path, _seed: str) -> Iterator[None]:
    """Killed behind the first flush: something is durable, and not all."""
    with _at_first_flush(lambda: os.kill(os.getpid(), signal.SIGKILL)):
        yield


@contextmanager
def _at_first_flush(act: Callable[[], None]) -> Iterator[None]:
    flush, done = os.fsync, False

    def fsync(fd: Any) -> None:
        nonlocal done
        flush(fd)
        if not done:
            done = True
            act()

    os.fsync = fsync
    try:
        yield
    finally:
        os.fsync = flush


@contextmanager
def _full(_for_s: float, rank: int, folder: Path, _seed: str) -> Iterator[None]:
    """The files of this rank's part lead to a device that is always full."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        (folder / f"__{rank}_{number}.distcp").symlink_to(FULL)
    yield


@contextmanager
def _read_only(_for_s: float, _rank: int, folder: Path, _seed: str) -> Iterator[None]:
    """No right to write in the folder of the save. Nobody may refuse root, so root becomes somebody else to the file
    system: this thread, and those that it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o555)
    user = os.geteuid()
    libc = ctypes.CDLL(None, use_errno=True)
    if user == 0:
        libc.setfsuid(NOBODY)
    try:
        yield
    finally:
        if user == 0:
            libc.setfsuid(user)
        if folder.exists():
            folder.chmod(0o755)


@contextmanager
def _flipped_after(_for_s: float, rank: int, folder: Path, seed: str) -> Iterator[None]:
    """The part is written, and its checksums are on record. Another rank's writer may have committed the save since:
    then the folder has its final name."""
    yield
    flip_in([folder, folder.with_name(folder.name.partition(".")[0])], rank, seed)


@contextmanager
def _flipped_before(_for_s: float, _rank: int, _folder: Path, seed: str) -> Iterator[None]:
    """In the staged copy, which this process shares with its rank."""
    from trainer.checkpoint.persist import staged

    flip_in_memory(staged(), seed)
    yield


ACTS: Mapping[str, Callable[[float, int, Path, str], Any]] = {
    "slow_disk": _slow,
    "writer_death": _dead,
    "full_disk": _full,
    "readonly_disk": _read_only,
    "bit_flip_stored": _flipped_after,
    "bit_flip_staged": _flipped_before,
}
"""Kind -> what holds while the request is done."""
