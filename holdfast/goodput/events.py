"""The event log: JSON lines, append-only, readable after any crash. Each process writes files of its own.

The first line is the anchor {schema, source, wall, mono, boot, host, pid, ...identity}: it ties the process's monotonic
clock to the wall clock once. Every other line has `t` (monotonic seconds), `name`, and for a span `dur` (seconds).
Nothing is ever derived from a difference of wall clocks within one process, so a clock step cannot make a duration
negative.

A file that has grown to SEGMENT_BYTES is followed by the next segment of the same process, which begins with an anchor
of its own. A segment that has a successor is never written again: `holdfast.goodput.compaction` may turn it into
columns.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SCHEMA = 1
SEGMENT_BYTES = 128 * 1024
"""About 1600 lines, 800 steps. Small enough that the last segments of 1000 ranks, which are read line by line, are
parsed in seconds; large enough that a rank opens a file only every few minutes."""
_SUFFIX = ".jsonl"
_LATER = re.compile(r"\.s(\d{4,9})\.jsonl$")


def segment_of(file: str) -> tuple[str, int]:
    """The first segment's name, which stands for the process, and the number of a segment, from the name of its file.
    The first one is 0."""
    match = _LATER.search(file)
    return (file[: match.start()] + _SUFFIX, int(match.group(1))) if match else (file, 0)


def segment_name(first: str, number: int) -> str:
    """The file name of a process's segment. `first` is that of its first one."""
    return first if number == 0 else f"{first.removesuffix(_SUFFIX)}.s{number:04d}{_SUFFIX}"


def _boot_id() -> str:
    """Processes with the same boot id share one monotonic clock, so their events can be compared exactly."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class EventLog:
    """Append-only writer of one process's events.

    source: `rank`, `supervisor` or `runner`. identity: what holds for every line (rank, pod, generation, cycle ...).
    Each event is one write(2) of one line to a file opened with O_APPEND: a SIGKILL can tear the last line only.
    """

    def __init__(self, folder: Path, source: str, **identity: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = "-".join([source, *(f"{key}{value}" for key, value in identity.items() if key in ("rank", "pod"))])
        first = f"{stem}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}{_SUFFIX}"
        self.path = folder / first
        """Of the first segment."""
        self._identity = {"source": source, **identity}
        self._lock = threading.Lock()
        self._torn = False
        self._segment = 0
        self._size = 0
        self._limit = SEGMENT_BYTES
        self._file = self._opened(self.path)
        self._write(self._anchor())

    def point(self, name: str, *, at: float | None = None, **fields: Any) -> None:
        """Something happened, now or at monotonic time `at`."""
        self._write({"t": time.monotonic() if at is None else at, "name": name, **fields})

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Something lasts. Yields a dict for fields known only at its end.

        Written also when an exception ends it, then with `error`: a step that raised must not count as a finished one.
        """
        start = time.monotonic()
        extra: dict[str, Any] = {}
        try:
            yield extra
        except BaseException as error:
            extra["error"] = type(error).__name__
            raise
        finally:
            self.lasted(name, start, **{**fields, **extra})

    def lasted(self, name: str, start: float, **fields: Any) -> None:
        """A span that began at monotonic time `start` and ends now."""
        self._write({"t": start, "name": name, "dur": time.monotonic() - start, **fields})

    def close(self) -> None:
        """Close the file. The log stays readable without it."""
        os.close(self._file)

    @staticmethod
    def _opened(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _anchor(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": "anchor",
            "source": self._identity["source"],
            "wall": time.time(),
            "mono": time.monotonic(),
            "boot": _boot_id(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **self._identity,
        }

    def _write(self, record: dict[str, Any]) -> None:
        line = _line(record)
        with self._lock:
            if self._size >= self._limit and not self._torn:
                self._next_segment()
            # A disk that fills up may take half a line; the next one must not be glued to it.
            text = b"\n" + line if self._torn else line
            try:
                written = os.write(self._file, text)
            except OSError:
                # A full disk must not end training; the ledger shows the hole as unattributed time.
                return
            self._size += written
            self._torn = written < len(text)

    def _next_segment(self) -> None:
        """Go on in a new file. Where that fails, in the old one for another SEGMENT_BYTES.

        A restart in process may end this anywhere by an exception. Nothing has been written to the old segment then
        since the new one is there, and the next line begins here again.
        """
        path = self.path.with_name(segment_name(self.path.name, self._segment + 1))
        file = None
        try:
            file = self._opened(path)
            anchor = (b"\n" if os.fstat(file).st_size else b"") + _line(self._anchor())
            if os.write(file, anchor) < len(anchor):
                raise OSError("no space for the anchor")
        except OSError:
            self._limit = self._size + SEGMENT_BYTES
            if file is not None:
                os.close(file)
                with suppress(OSError):
                    path.unlink()
            return
        old = self._file
        self._file, self._segment, self._size, self._limit = file, self._segment + 1, len(anchor), SEGMENT_BYTES
        os.close(old)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
