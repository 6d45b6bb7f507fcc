"""Output of each rank, kept on the shared storage by generation, cycle and rank, while the pod's console shows it too.

The launcher redirects each rank into a file of the pod's scratch folder and repeats it on the console (torch's
`--redirects`, `--tee`); so a rank never waits for the shared storage to take a line. A thread of the supervisor copies
what is new once per second: a node that vanishes takes the last second with it. Bounded everywhere: kept per rank and
cycle recovery.log_kib_per_rank, of recovery.log_cycles cycles; in the scratch folder what is copied is freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import shutil
import threading
import time
from pathlib import Path

from holdfast.config import RunConfig, names
from holdfast.run_directory import RunDirectory
from trainer.restart import who

SWEEP_S = 1.0
UNKNOWN_S = 20.0
"""A process that has not said so long which rank it is never will; its output is kept under its pod's name."""
AT_ONCE_BYTES = 1 << 20
"""Read of one file in one sweep; a rank that prints faster is behind, not lost."""
FREE_BYTES = 1 << 22
"""Scratch space is freed in portions of this size, one portion behind what was copied: the console reads there too."""
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of fallocate(2)."""
STOP_S = 5.0
CYCLE = re.compile(r"g(\d+)-c(\d+)")


class RankLogs:
    """One per launcher. Use as a context manager around it; the launcher gets `folder` as its --log-dir."""

    def __init__(self, config: RunConfig, run: RunDirectory, scratch: Path, generation: int, pod: str) -> None:
        self.folder = folder_of(scratch, generation)
        self._config = config
        self._logs = run.path / names.LOGS
        self._scratch = scratch
        self._generation = generation
        self._pod = pod
        self._copies: dict[Path, _Copy] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="rank-logs")

    def __enter__(self) -> RankLogs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last lines are worth a moment; dead storage is not worth more."""
        self._over.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._over.wait(SWEEP_S):
            self._sweep()
        self._sweep(last=True)

    def _sweep(self, last: bool = False) -> None:
        for output in sorted(self.folder.glob("*/attempt_*/*/std*.log")):
            try:
                copy = self._copies.get(output) or self._begin(output, last)
                if copy is not None:
                    copy.go_on(last)
            except OSError as error:
                logging.warning("output of a rank in %s was not kept: %s", output, error)
        self._forget_old_cycles()

    def _begin(self, output: Path, last: bool) -> _Copy | None:
        """None as long as it is not known whose output it is."""
        if output.stat().st_size == 0:
            return None
        local_rank, cycle = int(output.parent.name), int(output.parent.parent.name.removeprefix("attempt_"))
        one = who.of(self._scratch, local_rank)
        by_launcher = self._config.recovery.in_job  # torchrun counts nothing; there the rank knows its cycle
        if one is not None and one.generation == self._generation and (one.cycle == cycle or not by_launcher):
            target = self._logs / one.cycle_name / f"rank{one.rank}.log"
            if one.rank == 0:
                prune(self._logs, self._config.recovery.log_cycles - 1, keep=one.cycle_name)
        elif last or time.time() - output.stat().st_mtime > UNKNOWN_S:
            target = self._logs / f"g{self._generation}-c{cycle}" / f"{self._pod}.local{local_rank}.log"
        else:
            return None
        self._copies[output] = _Copy(output, target, self._config.recovery.log_kib_per_rank * 1024)
        return self._copies[output]

    def _forget_old_cycles(self) -> None:
        """Scratch space of cycles before the last two."""
        cycles = sorted(self.folder.glob("*/attempt_*"), key=lambda path: int(path.name.removeprefix("attempt_")))
        for cycle in cycles[:-2]:
            self._copies = {path: copy for path, copy in self._copies.items() if cycle not in path.parents}
            shutil.rmtree(cycle, ignore_errors=True)


class _Copy:
    """One stream of one rank: what was copied, and whereto. Both streams of a rank go into one file."""

    def __init__(self, source: Path, target: Path, most_bytes: int) -> None:
        self._source = source
        self._target = target
        self._half = most_bytes // 2
        self._copied = 0
        self._freed = 0

    def go_on(self, last: bool) -> None:
        """Append what is new, in whole lines; at the end whatever there is. Raises OSError."""
        while True:
            with open(self._source, "rb") as file:
                file.seek(self._copied)
                new = file.read(AT_ONCE_BYTES)
            if not last and len(new) < AT_ONCE_BYTES:
                new = new[: new.rfind(b"\n") + 1]
            if not new:
                return
            append(self._target, new, self._half)
            self._copied += len(new)
            self._free()
            if not last:
                return

    def _free(self) -> None:
        if self._copied - self._freed < 2 * FREE_BYTES:
            return
        end = (self._copied // FREE_BYTES - 1) * FREE_BYTES
        with contextlib.suppress(OSError), open(self._source, "r+b") as file:
            size = ctypes.c_int64
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(file.fileno(), PUNCH_HOLE_KEEP_SIZE, size(self._freed), size(end - self._freed))
            self._freed = end


def folder_of(scratch: Path, generation: int) -> Path:
    """Where the launcher of a generation puts the output of its ranks."""
    return scratch / names.RANK_LOGS / f"g{generation}"


def append(target: Path, data: bytes, half_bytes: int) -> None:
    """Append to a log that has two halves: <name>.log, and <name>.1.log with what was before. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        size = target.stat().st_size
        if size and size + len(data) > half_bytes:
            target.rename(target.with_suffix(".1.log"))
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, data[-half_bytes:])
    finally:
        os.close(descriptor)


def prune(logs: Path, keep_last: int, keep: str) -> None:
    """Delete the folders of all cycles but the newest `keep_last` and the one named `keep`."""
    found = [(tuple(map(int, match.groups())), path) for path in logs.glob("g*-c*") if (match := _cycle(path))]
    old = [path for _, path in sorted(found) if path.name != keep]
    for path in old[: max(0, len(old) - keep_last)]:
        shutil.rmtree(path, ignore_errors=True)


def _cycle(path: Path) -> re.Match[str] | None:
    return CYCLE.fullmatch(path.name)
