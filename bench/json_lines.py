"""Files of JSON lines that a bench adds to. A line is durable when `append` returns; a torn one does not count."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line. One that a killed writer has left half done is ended first: this one must not be glued to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The lines of all files that are there, in order."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
    return found
