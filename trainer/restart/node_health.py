"""Is this node still fit? Asked by ft_launcher before each rendezvous, and by the supervisor while it has no ranks.

NVRx 0.6.0 looks at a node whenever its launcher joins a rendezvous, at each restart too, and asks a service on a unix
socket as the last of its checks (`--ft-node-health-check-endpoint`). The supervisor is that service, and its answer is
preflight. On a no the launcher leaves, a spare takes its place, and the pod ends with 1. A spare waits inside one
rendezvous for hours and is not asked; so its supervisor looks by itself.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from nvidia_resiliency_ext.shared_utils.proto import nvhcd_pb2

from trainer.child import Child

SERVICE, METHOD = "nvhcd.HealthCheckService", "RunHealthCheck"
RECHECK_S = 10.0
"""An unfit spare is looked at again after so long before it is given up: a file system may only have stalled."""
CLOSE_S = 2.0
"""At its end an answer under way is waited for so long. A check that hangs in a dead file system is not worth more."""
STOP_S = 15.0
"""SIGTERM to SIGKILL of the launcher of an unfit spare; it only waits in a rendezvous."""


class NodeHealth:
    """One per worker pod. findings: preflight, bounded in time. Use as a context manager around the launcher."""

    def __init__(self, socket: Path, findings: Callable[[], list[str]], spare_check_interval_s: float) -> None:
        self._findings = findings
        self._interval_s = spare_check_interval_s
        self._next_look = time.monotonic() + spare_check_interval_s
        self._checking: threading.Thread | None = None
        self._stop_at: float | None = None
        self.unfit = ""
        """What makes this node unfit, as of the last look."""
        self._in_a_row = 0
        """Looks that have found it unfit since it was fit."""
        self._server = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_unary_rpc_method_handler(
            self._answer,
            request_deserializer=nvhcd_pb2.HealthCheckRequest.FromString,
            response_serializer=nvhcd_pb2.HealthCheckResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{socket}")

    def __enter__(self) -> NodeHealth:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Without a grace it only asks for an end, and an answer under way could still change what `unfit` says.
        self._server.stop(CLOSE_S).wait(CLOSE_S + 1)

    def _answer(self, _request: Any, _context: Any) -> Any:
        """What NVRx reads: `success`, and how many checks failed."""
        found = self._look()
        answer = json.dumps({"fail_count": len(found), "failed_checks": found})
        return nvhcd_pb2.HealthCheckResponse(success=not found, exit_code=int(bool(found)), output=answer)

    def _look(self) -> list[str]:
        found = self._findings()
        self.unfit = " ".join(found)
        self._in_a_row = self._in_a_row + 1 if found else 0
        if found:
            logging.error("this node is unfit: %s", self.unfit)
        return found

    def look_after(self, child: Child) -> None:
        """Call often: at its time, checks the node of a launcher without ranks, and ends the launcher if it is unfit.

        In a thread, since a dead file system can hold a check for long.
        """
        now = time.monotonic()
        if self._stop_at is not None:
            if now >= self._stop_at:
                child.kill_all()
        elif self._in_a_row >= 2 and not child.ranks():
            child.terminate()
            self._stop_at = now + STOP_S
        elif now >= self._next_look and not child.ranks() and (self._checking is None or not self._checking.is_alive()):
            self._next_look = now + (min(RECHECK_S, self._interval_s) if self._in_a_row else self._interval_s)
            self._checking = threading.Thread(target=self._look, daemon=True)
            self._checking.start()
