"""The process that accounts goodput, as its control pod sees it: started, started again when it has ended, never waited
for. It ends with the pod's other processes.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time

from holdfast.config import names
from trainer.pod.pod import Pod

logger = logging.getLogger(__name__)

PAUSE_S = 60.0
"""It is started at most once in so long, so that one that cannot start costs nothing."""


class Accountant:
    """`keep` starts the process of a generation, and starts it again when it has ended."""

    def __init__(self, pod: Pod, world_size: int) -> None:
        """world_size: ranks of this generation."""
        address = pod.environment.get(names.ENV_METRICS, "")
        self._environment = pod.environment
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0
        self._argv = [sys.executable, "-m", "trainer.metrics.goodput"]
        self._argv += ["--config", str(pod.config_file), "--run-dir", str(pod.run.path)]
        self._argv += ["--address", address, "--world-size", str(world_size)]
        self._wanted = bool(address)

    def keep(self) -> None:
        """Start it if it does not run and it is time to."""
        if not self._wanted or time.monotonic() < self._not_before:
            return
        if self._process is not None and self._process.poll() is None:
            return
        self._not_before = time.monotonic() + PAUSE_S
        try:
            self._process = subprocess.Popen(self._argv, env=dict(self._environment))
        except OSError as error:
            logger.warning("goodput is not accounted: %s", error)
