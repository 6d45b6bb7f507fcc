"""What the writer tidies up beside the saves: old checkpoints after a commit, the folder of a save that failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint import commit
from trainer.checkpoint.writer import Ticket, Writer, WriterFailed

logger = logging.getLogger(__name__)

POLL_S = 0.02
"""Pause between looks while a deletion is waited for."""


class Retention:
    """Deletions by rank 0's writer. Nothing depends on one: what fails now is tried again after the next commit."""

    def __init__(self, writer: Writer, limit_s: float) -> None:
        """limit_s: a writer that takes longer over it is replaced."""
        self._writer = writer
        self._limit_s = limit_s
        self._ticket: Ticket | None = None

    def begin(self) -> None:
        """Have what is superfluous after a commit deleted."""
        self._ticket = self._submit(commit.retain)

    def discard(self, folder: Path) -> None:
        """Have what a failed save left deleted. It may have cost the writer its life, with what it was deleting."""
        self._ticket = None
        self._submit(commit.discard, str(folder))

    def look(self) -> None:
        """Pass on what a deletion had to say. A writer that dies over it is replaced. Raises StaleAttempt or
        StaleGeneration if a newer one owns the run."""
        if self._ticket is None:
            return
        try:
            outcome = self._writer.result(self._ticket, self._limit_s)
        except WriterFailed as error:
            commit.raise_if_stale(error)
            outcome = {"error": str(error)}
        if outcome is not None:
            self._ticket = None
            if outcome["error"]:
                logger.warning("old checkpoints could not be deleted: %s", outcome["error"])

    def finish(self, limit_s: float) -> None:
        """Wait, at most `limit_s`, until a deletion is over: nobody would do it later."""
        deadline = time.monotonic() + limit_s
        while self._ticket is not None and time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_S)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Ticket | None:
        try:
            return self._writer.submit(function, *arguments)
        except WriterFailed as error:
            logger.warning("%s", error)
            return None
