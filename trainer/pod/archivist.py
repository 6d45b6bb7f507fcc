"""The process that turns finished event segments into archives, as its control pod sees it: started, started again when
it has ended, never waited for. It ends with the pod's other processes, at whatever it is doing.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time

from trainer.pod.pod import Pod

logger = logging.getLogger(__name__)

FIRST_S = 60.0
"""A generation that is younger has nothing to archive, and short runs should not pay for an import of pyarrow."""
PAUSE_S = 60.0
"""It is started at most once in so long, so that one that cannot start costs nothing."""


class Archivist:
    """`keep` starts the process of a generation, and starts it again when it has ended."""

    def __init__(self, pod: Pod) -> None:
        self._argv = [sys.executable, "-m", "holdfast.goodput.compaction", str(pod.run.events)]
        self._environment = {**pod.environment, "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = time.monotonic() + FIRST_S

    def keep(self) -> None:
        """Start it if it does not run and it is time to."""
        if time.monotonic() < self._not_before or (self._process is not None and self._process.poll() is None):
            return
        self._not_before = time.monotonic() + PAUSE_S
        try:
            self._process = subprocess.Popen(self._argv, env=self._environment)
        except OSError as error:
            logger.warning("event logs are not archived: %s", error)
