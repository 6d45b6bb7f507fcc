"""The event log: JSON lines, one file per process, append-only, readable after any crash.

The first line is the anchor {schema, source, wall, mono, boot, host, pid, ...identity}: it ties the process's monotonic
clock to the wall clock once. Every other line has `t` (monotonic seconds), `name`, and for a span `dur` (seconds).
Nothing is ever derived from a difference of wall clocks within one process, so a clock step cannot make a duration
negative.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA = 1


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
        self.path = folder / f"{stem}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}.jsonl"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._torn = False
        self._write(
            {
                "schema": SCHEMA,
                "name": "anchor",
                "source": source,
                "wall": time.time(),
                "mono": time.monotonic(),
                "boot": _boot_id(),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                **identity,
            }
        )

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

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            # A disk that fills up may take half a line; the next one must not be glued to it.
            text = b"\n" + line if self._torn else line
            try:
                written = os.write(self._file, text)
            except OSError:
                # A full disk must not end training; the ledger shows the hole as unattributed time.
                return
            self._torn = written < len(text)
