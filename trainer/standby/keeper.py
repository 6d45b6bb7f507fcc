"""The supervisor's side of the standby: it starts the template, replaces a dead one a few times, and ends it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from holdfast.config import RunConfig
from holdfast.goodput.events import EventLog
from trainer.child import is_rank
from trainer.standby.protocol import ENV_PARENT, ENV_SOCKET, ENV_WAIT_S
from trainer.standby.template import UNFIT

logger = logging.getLogger(__name__)

STARTS = 5
"""Templates in the life of a pod. One that keeps dying has a reason that the next one has too, and each costs the CPU
seconds of all imports; ranks start without it."""
END_S = 5.0
"""How long a killed template may take to end."""


class Keeper:
    """Keeps a template alive while a pod runs; a context manager. With recovery.standby off it does nothing."""

    def __init__(
        self, config: RunConfig, rank_args: Sequence[str], scratch: Path, environment: Mapping[str, str], log: EventLog
    ) -> None:
        """rank_args: arguments of `python -m trainer` in this pod. environment: of the pod's launcher."""
        self._wanted = config.recovery.standby and config.recovery.in_job
        self._rank_args = list(rank_args)
        self._log = log
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = dict(environment)
        """Of the launcher: with it, doors find the template."""
        if self._wanted:
            self.environment |= {
                ENV_SOCKET: str(scratch / "standby.sock"),
                ENV_WAIT_S: str(config.recovery.standby_wait_s),
            }
            if config.cluster.ranks_per_node > 1:
                # ft_launcher sets it for its ranks; OpenMP reads it when it is loaded, which is in the template.
                self.environment.setdefault("OMP_NUM_THREADS", "1")

    def __enter__(self) -> Keeper:
        self.look_after()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the template, or None if there is none."""
        return None if self._process is None else self._process.pid

    def ranks(self) -> list[psutil.Process]:
        """The ranks that the template has forked."""
        try:
            children = [] if self.pid is None else psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if is_rank(child)]

    def look_after(self) -> None:
        """Start the template if there is none. Called at the start of the pod and every half second."""
        if not self._wanted:
            return
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            self._log.point("standby_end", code=code)
            logger.warning("the standby of this pod ended with %d", code)
            if code == UNFIT or self._starts >= STARTS:
                self._wanted = False
                logger.warning("no other standby is started (starts so far: %d)", self._starts)
                return
        self._start()

    def _start(self) -> None:
        """Started by the thread that calls it, with whose end the kernel ends it: call it from the main thread."""
        self._starts += 1
        command = [sys.executable, "-u", "-m", "trainer.standby.template", *self._rank_args]
        environment = {**self.environment, ENV_PARENT: str(os.getpid())}
        try:
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
        except OSError as error:
            self._wanted = False
            logger.warning("the standby of this pod cannot be started: %s", error)
            return
        self._log.point("standby_start", pid=self._process.pid)

    def close(self) -> None:
        """Kill the template. The kernel kills its ranks, if it has any left."""
        self._wanted = False
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        deadline = time.monotonic() + END_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
