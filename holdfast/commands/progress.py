"""A progress bar on stderr, where that is a terminal; nothing otherwise, so that logs hold results only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    """`with Progress("step 30", total_bytes) as progress: progress.advance(count)`. Rich is imported only if shown."""

    def __init__(self, title: str, total: int) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        if self._bar is not None:
            self._bar.advance(self._task, count)
