"""Readiness probes, really executed."""

from __future__ import annotations

import socket

from holdfast.local.objects import Probe
from holdfast.local.pod import Pod

CONNECT_LIMIT_S = 0.05
"""A connection over loopback is answered at once; the runner's loop must not wait longer."""


class Readiness:
    """The probe of one pod. A pod without one is ready as soon as it runs."""

    def __init__(self, pod: Pod, probe: Probe | None, now: float, eager_period_s: float) -> None:
        """eager_period_s: longest time between two looks at a pod that is not ready yet."""
        self._pod = pod
        self._probe = probe
        self._eager_period_s = eager_period_s
        self._next_at = now + (probe.initial_delay_s if probe else 0.0)
        self._request = 0
        self._waiting = False
        self._streak = 0
        """Positive: successes in a row. Negative: failures in a row."""

    def tick(self, now: float) -> None:
        """Probe if it is time to."""
        pod = self._pod
        if pod.process is None or pod.process.main_pid is None:
            return
        if self._probe is None:
            pod.ready = True
        elif not self._waiting and now >= self._next_at:
            self._next_at = now + (
                self._probe.period_s if pod.ready else min(self._probe.period_s, self._eager_period_s)
            )
            if self._probe.command is not None:
                self._request += 1
                self._waiting = True
                pod.process.probe(self._request, self._probe.command, self._probe.timeout_s)
            else:
                self._judge(self._probe, _accepts(pod.address, self._probe.port))

    def answered(self, request: int, code: int) -> None:
        """The command of a probe has ended."""
        if self._probe is not None and request == self._request:
            self._waiting = False
            self._judge(self._probe, code == 0)

    def _judge(self, probe: Probe, success: bool) -> None:
        self._streak = max(self._streak, 0) + 1 if success else min(self._streak, 0) - 1
        if self._streak >= probe.success_threshold:
            self._pod.ready = True
        elif -self._streak >= probe.failure_threshold:
            self._pod.ready = False


def _accepts(address: str | None, port: int | str | None) -> bool:
    try:
        with socket.create_connection((str(address), int(port or 0)), timeout=CONNECT_LIMIT_S):
            return True
    except OSError:
        return False
