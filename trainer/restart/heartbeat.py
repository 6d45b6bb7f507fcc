"""The rank monitor of ft_launcher: named sections, each with its own time limit. Silent without a launcher.

NVRx's client imports torch (1.4 s on the development machine), so a rank cannot be monitored before that import; the
supervisor limits the time until the first section instead (docs/adr/0003).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import names
from holdfast.process_identity import pid_started
from trainer.restart.learned_limits import StepLimit

if TYPE_CHECKING:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

MONITORED_PREFIX = "monitored-"
"""Pod-local file `monitored-<pid>`: this rank has opened its first section. The supervisor looks for it. In it is when
the process started: in a pod that has restarted its ranks for weeks, a pid comes again."""


Atomic = Callable[[], AbstractContextManager[None]]
UNREACHABLE = "unreachable"
"""Pod-local file: a new rank's monitor is not there, or takes nothing. The supervisor looks for it."""


def is_monitored(scratch: Path, pid: int) -> bool:
    """Whether this process, and no earlier one with its pid, has opened its first section."""
    try:
        return (scratch / f"{MONITORED_PREFIX}{pid}").read_text() == pid_started(pid)
    except OSError:
        return False


def monitor_is_gone(scratch: Path) -> bool:
    """Whether a rank of this launcher could not connect to its monitor."""
    return (scratch / UNREACHABLE).exists()


def forget_monitored(scratch: Path) -> None:
    """Remove what earlier ranks of this pod have left behind. Call it while no rank runs."""
    for mark in [*scratch.glob(f"{MONITORED_PREFIX}*"), scratch / UNREACHABLE]:
        mark.unlink(missing_ok=True)


class MonitorLost(Exception):
    """The rank monitor of this node does not take what this process says. No attempt of this process would be watched;
    the launcher gives the next process a connection of its own."""


class Pulse:
    """Sections of the training loop, told to the rank monitor. One per process; `restart` begins a new attempt.

    A section that an exception leaves stays open on purpose: whoever handles the exception has that section's time.
    Everything that tells the monitor something raises MonitorLost if it cannot be reached.
    """

    def __init__(self, client: RankMonitorClient | None) -> None:
        self._client = client
        self._atomic: Atomic = nullcontext
        self._open: str | None = None
        self._since = 0.0
        self._step_limit: StepLimit | None = None

    def learn(self, step_limit: StepLimit) -> None:
        """From now on, tell it how long each step section took, and the rank monitor what it answers."""
        self._step_limit = step_limit
        self._limit_steps(step_limit.at_start())

    def _limit_steps(self, limit_s: float | None) -> None:
        if self._client is None or limit_s is None:
            return
        limits = self._client.section_timeouts
        changed = replace(
            limits,
            section={**limits.section, names.SECTION_STEP: limit_s},
            calculated_sections={*limits.calculated_sections, names.SECTION_STEP},
        )
        with self._said():
            # The client keeps it, and tells it again when it has to reconnect.
            self._client.load_state_dict({self._client.CURRENT_TIMEOUTS_STATE_KEY: {"section": vars(changed)}})

    def restart(self, atomic: Atomic = nullcontext) -> None:
        """Begin an attempt: forget sections that an aborted one left open, and open `init`.

        atomic: layer 1 does not strike inside it; a message that is said by half ends the connection. NVRx 0.6.0's
        end_all_sections sends nothing, since it has no section named None; so reconnect.
        """
        self._atomic = atomic
        if self._client is not None and self._open not in (None, names.SECTION_INIT):
            with self._said():
                self._client.shutdown_workload_monitoring()
            self.connect()
        self.enter(names.SECTION_INIT)

    def connect(self) -> None:
        """Open `init` on a new connection, and see that the monitor has taken it: sections get no answer.

        A monitor of NVRx 0.6.0 that loses two connections in a row without a section in between takes none ever again
        (rank_monitor_state_machine.py, line 72), and closes each connection at its first section.
        """
        if (client := self._client) is None:
            return
        with self._said():
            client.init_workload_monitoring()
            client.start_section(names.SECTION_INIT)
            self._open, self._since = names.SECTION_INIT, time.monotonic()
            client.load_state_dict({client.CURRENT_TIMEOUTS_STATE_KEY: {"section": vars(client.section_timeouts)}})

    def enter(self, section: str) -> None:
        """Leave the open section, if any, and open `section`."""
        if self._client is None or self._open == section:
            return
        with self._said():
            if self._open is not None:
                self._client.end_section(self._open)
            self._client.start_section(section)
            self._open = section
        self._since = time.monotonic()

    @contextmanager
    def section(self, section: str) -> Iterator[None]:
        """Open `section` for the body."""
        self.enter(section)
        yield
        self.leave()

    def leave(self) -> None:
        """Close the open section; the out-of-section limit runs until the next."""
        closed = self._open
        if self._client is None or closed is None:
            return
        with self._said():
            self._client.end_section(closed)
            self._open = None
        if closed == names.SECTION_STEP and self._step_limit is not None:
            self._limit_steps(self._step_limit.saw(time.monotonic() - self._since))

    @contextmanager
    def _said(self) -> Iterator[None]:
        with self._atomic(), _reached():
            yield


@contextmanager
def _reached() -> Iterator[None]:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClientError

    try:
        yield
    except (RankMonitorClientError, OSError, EOFError) as error:
        raise MonitorLost(f"the rank monitor of this node cannot be reached: {error}") from error


def _keep_from_children(client: RankMonitorClient) -> None:
    """A forked child (a writer, NVRx's in-process monitor) has the connection too. The monitor serves one connection at
    a time: a child that outlives its rank would keep the next rank of this place waiting, and unwatched meanwhile."""

    def let_go() -> None:
        if client.rank_monitor_socket is not None:
            client.rank_monitor_socket.close()

    os.register_at_fork(after_in_child=let_go)


def preload() -> None:
    """Import what `connect` needs."""
    import nvidia_resiliency_ext.fault_tolerance  # noqa: F401


def connect(environment: Any = os.environ) -> Pulse:
    """Connect to the rank monitor and open `init` at once; a silent Pulse where there is no ft_launcher. Raises
    MonitorLost."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in environment:
        return Pulse(None)
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient, RankMonitorClientError

    scratch = environment.get(names.ENV_SCRATCH)
    client = RankMonitorClient()
    pulse = Pulse(client)
    try:
        pulse.connect()
    except MonitorLost as lost:
        if scratch and isinstance(lost.__cause__, (RankMonitorClientError, ConnectionError, FileNotFoundError)):
            (Path(scratch) / UNREACHABLE).touch()
        raise
    _keep_from_children(client)
    if scratch:
        (Path(scratch) / f"{MONITORED_PREFIX}{os.getpid()}").write_text(pid_started(os.getpid()))
    return pulse
