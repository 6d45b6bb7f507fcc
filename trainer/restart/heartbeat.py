"""The rank monitor of ft_launcher: named sections, each with its own time limit. Silent without a launcher.

NVRx's client imports torch (1.4 s on the development machine), so a rank cannot be monitored before that import; the
supervisor limits the time until the first section instead (docs/adr/0003).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import names

if TYPE_CHECKING:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

MONITORED_PREFIX = "monitored-"
"""Pod-local file `monitored-<pid>`: this rank has opened its first section. The supervisor looks for it."""


class Pulse:
    """Sections of the training loop, told to the rank monitor. One per process; `restart` begins a new attempt.

    A section that an exception leaves stays open on purpose: whoever handles the exception has that section's time.
    """

    def __init__(self, client: RankMonitorClient | None) -> None:
        self._client = client
        self._open: str | None = None

    def restart(self) -> None:
        """Begin an attempt: forget sections that an aborted one left open, and open `init`.

        NVRx 0.6.0's end_all_sections sends nothing, since it has no section named None; so reconnect.
        """
        if self._client is not None and self._open not in (None, names.SECTION_INIT):
            self._client.shutdown_workload_monitoring()
            self._client.init_workload_monitoring()
            self._open = None
        self.enter(names.SECTION_INIT)

    def enter(self, section: str) -> None:
        """Leave the open section, if any, and open `section`."""
        if self._client is None or self._open == section:
            return
        if self._open is not None:
            self._client.end_section(self._open)
        self._client.start_section(section)
        self._open = section

    @contextmanager
    def section(self, section: str) -> Iterator[None]:
        """Open `section` for the body."""
        self.enter(section)
        yield
        self.leave()

    def leave(self) -> None:
        """Close the open section; the out-of-section limit runs until the next."""
        if self._client is not None and self._open is not None:
            self._client.end_section(self._open)
        self._open = None


def connect(environment: Any = os.environ) -> Pulse:
    """Connect to the rank monitor and open `init` at once; a silent Pulse where there is no ft_launcher."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in environment:
        return Pulse(None)
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    pulse = Pulse(client)
    pulse.enter(names.SECTION_INIT)
    scratch = environment.get(names.ENV_SCRATCH)
    if scratch:
        (Path(scratch) / f"{MONITORED_PREFIX}{os.getpid()}").touch()
    return pulse
