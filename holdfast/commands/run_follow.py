"""Follows the event logs of a job while it runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_S = 0.1
"""How often new lines are looked for."""


@dataclass(frozen=True)
class TrainingEvent:
    """One line of an event log. anchor: the first line of its file, which says whose it is. t: monotonic seconds."""

    anchor: Mapping[str, Any]
    name: str
    t: float
    fields: Mapping[str, Any]

    @property
    def source(self) -> str:
        """rank, supervisor or runner."""
        return str(self.anchor.get("source"))

    @property
    def rank(self) -> int | None:
        """The rank that wrote it, if a rank did."""
        rank = self.anchor.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def step(self) -> int | None:
        """The step it is about, if it is about one."""
        step = self.fields.get("step")
        return step if isinstance(step, int) else None


@dataclass
class _File:
    path: Path
    offset: int = 0
    torn: bytes = b""
    anchor: Mapping[str, Any] = field(default_factory=dict)


class EventTail:
    """New lines of the logs in one folder, anchors included, the runner's own excepted. Files there already are old."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._old = {path.name for path in folder.glob("*.jsonl")}
        self._files: dict[str, _File] = {}
        self._next = 0.0

    def poll(self, at_once: bool = False) -> Iterator[TrainingEvent]:
        """What was written since the last call. Nothing if that is less than POLL_S ago, unless at_once."""
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        self._next = now + POLL_S
        for name, size in self._sizes():
            file = self._files.setdefault(name, _File(self._folder / name))
            if size > file.offset:
                yield from self._read(file)

    def _sizes(self) -> list[tuple[str, int]]:
        try:
            with os.scandir(self._folder) as entries:
                return [
                    (entry.name, entry.stat().st_size)
                    for entry in entries
                    if entry.name not in self._old
                    and entry.name.endswith(".jsonl")
                    and not entry.name.startswith("runner")
                ]
        except OSError:
            return []

    def _read(self, file: _File) -> Iterator[TrainingEvent]:
        try:
            with open(file.path, "rb") as opened:
                opened.seek(file.offset)
                content = opened.read()
        except FileNotFoundError:
            return  # archived; it had ended long before
        file.offset += len(content)
        *lines, file.torn = (file.torn + content).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
                name, t = record.pop("name"), float(record.pop("t", record.get("mono", 0.0)))
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # torn by a crash
            if name == "anchor":
                file.anchor = record
            yield TrainingEvent(file.anchor, name, t, record)
