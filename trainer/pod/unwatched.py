"""The end of a launcher whose rank monitor is gone. NVRx 0.6.0 starts the monitors once, with the launcher: each rank
that has none would end before its first section, until the stop rule took that for the job's fault.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from trainer.child import Child
from trainer.restart.heartbeat import monitor_is_gone

STOP_S = 5.0
"""From SIGTERM of the launcher, which then leaves the rendezvous, to its end by force."""


class Unwatched:
    """One per launcher. `look_after` as often as you like."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._stop_at: float | None = None
        self.why = ""
        """Why the launcher was ended; empty as long as it is not."""

    def look_after(self, child: Child) -> None:
        """End the launcher once a rank of it could not connect to its monitor. The pod then ends, and the next one has
        a launcher with monitors of its own."""
        if child.code() is not None:
            return  # a launcher that ends takes its monitors along
        if self._stop_at is None and monitor_is_gone(self._scratch):
            self.why = "a rank monitor of this pod is gone, and only a new launcher has another"
            logging.error("%s", self.why)
            self._stop_at = time.monotonic() + STOP_S
            child.terminate()
        elif self._stop_at is not None and time.monotonic() >= self._stop_at:
            child.kill_all()
