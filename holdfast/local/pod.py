"""One pod: from pending to the end of its last process."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from holdfast.local.objects import PodTemplate
from holdfast.local.processes import KILLED, PodProcess
from holdfast.local.report import PodState
from holdfast.local.rewrite import PodPlan

KILL_LIMIT_S = 5.0
"""A shim kills its tree within milliseconds; after so long the runner does it itself."""
ABANDON_LIMIT_S = 60.0
"""A process that survives SIGKILL for so long hangs in the kernel, say in a dead file system; a run must still end."""
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def pod_name(host: str) -> str:
    """`<host>-<5 characters>`, as the Job controller names pods."""
    return f"{host}-{''.join(random.SystemRandom().choices(_SUFFIX, k=5))}"


@dataclass
class Pod:
    """A pod and what is known of it. Its Job made it; the kubelet starts it; the runner's loop keeps it."""

    name: str
    host: str
    job: str
    replicated_job: str
    index: int
    attempt: int
    template: PodTemplate
    labels: dict[str, str]
    node: str | None = None
    address: str | None = None
    process: PodProcess | None = None
    plan: PodPlan | None = None
    ready: bool = False
    disrupted: bool = False
    """Condition DisruptionTarget: evicted, or its node was lost."""
    lost: bool = False
    """Nobody will ever report how its container ended."""
    stopping: str = ""
    """Why somebody asked it to end; empty while nobody has."""
    exit_code: int | None = None
    told_pending: bool = False
    told_ready: bool = False
    _kill_at: float | None = field(default=None, repr=False)
    _killed_at: float | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return self.exit_code is not None

    def stop(self, reason: str, grace_s: float | None = None) -> None:
        """SIGTERM, and SIGKILL after the grace period (the template's if None). A pod that never started ends at once.

        A second call can only shorten the time that is left.
        """
        grace_s = self.template.grace_period_s if grace_s is None else grace_s
        kill_at = time.monotonic() + grace_s
        if self.process is None:
            self._never_start()
            return
        if not self.stopping:
            self.stopping = reason
            self.process.terminate()
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def kill(self, reason: str = "") -> None:
        """SIGKILL to all of it. A reason tells observers that it did not fail by itself; its Job does not care."""
        self.stopping = self.stopping or reason
        self._kill_at = None
        if self.process is None:
            self._never_start()
            return
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        self.process.kill()

    def enforce(self, now: float) -> None:
        """Act on deadlines that have passed."""
        if self.process is None:
            return
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()
        if self._killed_at is not None and now >= self._killed_at + KILL_LIMIT_S:
            self.process.kill_directly()
        if self._killed_at is not None and now >= self._killed_at + ABANDON_LIMIT_S:
            self.stopping, self.exit_code = "its processes cannot be killed and were left behind", KILLED

    def _never_start(self) -> None:
        self.lost = self.disrupted = True
        self.exit_code = KILLED

    def state(self) -> PodState:
        """A copy of what an onlooker may want to know."""
        return PodState(
            name=self.name,
            host=self.host,
            job=self.job,
            replicated_job=self.replicated_job,
            index=self.index,
            attempt=self.attempt,
            phase="Pending" if self.process is None else "Terminating" if self.stopping else "Running",
            ready=self.ready,
            node=self.node,
            address=self.address,
            pid=self.process.main_pid if self.process else None,
        )
