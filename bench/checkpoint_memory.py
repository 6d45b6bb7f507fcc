"""Host memory of the whole machine while an arm runs, read from outside: pinned memory is in no process's own count."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

EVERY_S = 0.2
TOUCHERS = 16
TOUCH_LIMIT_S = 90


def used_bytes() -> int:
    """Bytes that the machine could not give to a new process."""
    fields = {}
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return fields["MemTotal"] - fields["MemAvailable"]


def held_bytes(folder: Path) -> int:
    """Bytes that files below a folder take."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            pass  # it was deleted meanwhile
    return total


def touch(gib: int) -> float:
    """Use so much memory once, in another process, and give it back. Returns the seconds that it took.

    A virtual machine may get its memory only as it uses it (measured: 2.7 GiB/s by one thread), which the first arms
    would pay and the later ones not.
    """
    start = time.monotonic()
    command = [sys.executable, "-m", "bench.checkpoint_memory", str(gib)]
    try:
        subprocess.run(command, cwd=Path(__file__).parents[1], check=False, timeout=TOUCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass  # what it has touched by then is there
    return time.monotonic() - start


def _fill(gib: int) -> None:
    with ThreadPoolExecutor(TOUCHERS) as pool:
        held = list(pool.map(lambda _: np.full(1 << 30, 1, dtype=np.uint8), range(gib)))
    del held


class Sampler:
    """Samples for as long as the body runs. target: saves lie there; in_memory: they are memory, but not an arm's."""

    def __init__(self, target: Path, in_memory: bool = True) -> None:
        self.used: list[tuple[float, int]] = []
        """(wall clock, bytes used by everything but the saves)"""
        self._target = target
        self._in_memory = in_memory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(5)

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            held = held_bytes(self._target) if self._in_memory else 0
            self.used.append((round(time.time(), 2), used_bytes() - held))


if __name__ == "__main__":
    _fill(int(sys.argv[1]))
