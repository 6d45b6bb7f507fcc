"""How a pod leaves in order: why it goes, what its ranks are asked, and what is waited for. The supervisor's side; what
the ranks do about it is in urgent.py.

The supervisor asks by a file in the pod's scratch folder, at which the ranks look once per step. Not by SIGTERM through
the launcher: NVRx sends the same signal to the ranks, and to their writers, whenever it restarts them, and there they
must die at once. With a handler of Python's a rank that waits in a collective for a dead peer would not, and each
restart would take recovery.workers_stop_timeout_s longer.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, timedelta
from pathlib import Path

import psutil

from holdfast.config import RunConfig, names
from holdfast.run_directory import RunDirectory, read_json, write_atomically
from trainer.child import Child

POLL_S = 0.05


@dataclass(frozen=True)
class Request:
    """What the ranks of a pod are asked. until: monotonic time at which they are killed."""

    why: str
    until: float


def asked(scratch: Path) -> Request | None:
    """What the supervisor of this pod has asked its ranks, or None."""
    record = read_json(scratch / names.LEAVE_FILE)
    return Request(str(record["why"]), float(record["until"])) if record else None


def forget(scratch: Path) -> None:
    """Remove what an earlier launcher of this pod was asked, and what its ranks have left behind: the next ranks must
    not leave at once, and may have the pids of old ones. Call it while no rank runs."""
    (scratch / names.LEAVE_FILE).unlink(missing_ok=True)
    for mark in scratch.glob(mark_of(scratch, 0).name.replace("0", "*")):
        mark.unlink(missing_ok=True)


def mark_of(scratch: Path, pid: int) -> Path:
    """File that is there while this rank is between its first step and the end of its last: it has work to lose."""
    return scratch / f"trains-{pid}"


class Departure:
    """Whether this pod must go, and how. One per supervisor."""

    def __init__(self, config: RunConfig, run: RunDirectory, scratch: Path, port: int) -> None:
        """port: where the control pod's store listens."""
        self._config = config
        self._run = run
        self._scratch = scratch
        self._port = port
        self.why: str | None = None
        """Why this pod goes; None as long as it stays."""
        self._since = 0.0

    def on_signal(self, number: int, _frame: object) -> None:
        """Handler of SIGTERM and SIGINT."""
        self._begin(f"stopped by signal {signal.Signals(number).name}")

    def due(self) -> bool:
        """Whether the pod must go; also looks at the clock."""
        if self.why is None and (over := self.capacity_over()):
            self._begin(over)
        return self.why is not None

    def capacity_over(self) -> str | None:
        """Why no training may begin or go on because the capacity ends, or None."""
        end, before_s = self._config.cluster.capacity_ends_at, self._config.recovery.leave_before_s
        if end is None or time.time() < (end - timedelta(seconds=before_s)).timestamp():
            return None
        at = end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        how = f"all leave recovery.leave_before_s={before_s:g} before"
        return f"the capacity ends at {at} (cluster.capacity_ends_at), and {how}; nothing is started again after that"

    def look_for_request(self, generation: int) -> None:
        """A worker goes when the control pod does: without its store no save can be agreed on or committed."""
        if self.why is None and self._run.asked_to_leave(generation):
            self._begin("the control pod leaves")

    def _begin(self, why: str) -> None:
        if self.why is None:
            self.why, self._since = why, time.monotonic()

    @property
    def request(self) -> Request:
        """What the ranks of a pod that goes are asked."""
        return Request(str(self.why), self.killed_at)

    @property
    def killed_at(self) -> float:
        """Monotonic time at which what still runs is killed. Before Kubernetes would kill this process too."""
        return self._since + min(self._config.recovery.term_timeout_s, self._config.cluster.grace_period_s - 2)

    def let_ranks_save(self, child: Child, request: Request) -> bool:
        """Ask the ranks that train to save and leave, and wait until they have. False: no rank trains, stop as usual.

        request: of a pod that goes, or of one that stays and waits for the next generation.

        ft_launcher is frozen meanwhile and must be killed after: it would answer the end of its ranks with a rendezvous
        and take the seat of a spare, to leave it again at once. The launchers of other nodes open that rendezvous.
        """
        ranks = self.training(child)
        if not ranks:
            return False
        if self._config.recovery.in_job:
            child.freeze()
        left = request.until - time.monotonic()
        logging.warning(
            "%s: ranks of this pod asked to save and leave: %d; %.1f s are left", request.why, len(ranks), left
        )
        write_atomically(self._scratch / names.LEAVE_FILE, json.dumps(asdict(request)))
        while ranks and self._left_s(request) > 0:
            time.sleep(POLL_S)
            child.reap()
            ranks = self.training(child)
        if ranks:
            logging.error("ranks that have not left in time and are killed: %d; the last commit stands", len(ranks))
        else:
            logging.info("all ranks of this pod have left; %.1f s were left", self._left_s(request))
        if self._run.complete() is not None:
            child.thaw()  # the step after which to leave was the last one; other launchers wait for this one
            child.wait(max(0.0, self._left_s(request)))
        return True

    def _left_s(self, request: Request) -> float:
        """Of a request's time; a pod that stays may be told to go meanwhile, and then has less."""
        until = request.until if self.why is None else min(request.until, self.killed_at)
        return until - time.monotonic()

    def let_workers_leave(self, child: Child, generation: int, meanwhile: Callable[[], None]) -> None:
        """Ask all workers to leave, and keep the store for them until nobody is connected to it."""
        self._run.ask_to_leave(generation, str(self.why))
        logging.warning("%s: the workers are asked to save and leave; the store waits for them", self.why)
        until = self.killed_at + 1
        while (connected := _connected(child.pid, self._port)) and time.monotonic() < until and child.code() is None:
            meanwhile()
            time.sleep(POLL_S)
        if connected:
            logging.error("connections to the store that are still open: %d; it ends all the same", connected)

    def training(self, child: Child) -> list[psutil.Process]:
        """The ranks of this pod that have work to lose."""
        return [rank for rank in child.ranks() if mark_of(self._scratch, rank.pid).exists()]


def _connected(pid: int, port: int) -> int:
    """Connections of other processes to the port that process `pid` listens on."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return 0
    established = [c for c in connections if c.status == psutil.CONN_ESTABLISHED]
    # IPv4 addresses look different on a socket that takes both kinds.
    ends = [((c.laddr.ip, c.laddr.port), (c.raddr.ip.removeprefix("::ffff:"), c.raddr.port)) for c in established]
    own = {(ip.removeprefix("::ffff:"), own_port) for (ip, own_port), _ in ends}
    return sum(here[1] == port and there not in own for here, there in ends)
