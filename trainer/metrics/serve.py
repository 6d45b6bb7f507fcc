"""Serves metrics from a daemon thread. It costs the training loop nothing, outlives in-process restarts, and never
keeps a process alive. What goes wrong here is a warning: no run ends for want of a metric.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause between two tries of a port that is taken. After a restart the process before may still hold it."""
TRIES = 60
"""So many tries, five minutes, and then none: whatever holds the port then is no leftover."""
IDLE_S = 10.0
"""A client that says nothing for so long is cut off; each has a thread."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """A line per scrape would drown the log of the rank."""


def serve(address: str, collector: Any, *, retry_s: float = RETRY_S, tries: int = TRIES) -> threading.Thread:
    """Serve what `collector.collect()` yields at http://<address>/metrics, from now to the end of the process.

    address: host:port. Returns at once: importing the library (0.07 s) and binding happen in the thread.
    """
    thread = threading.Thread(
        target=_run, args=(address, collector, retry_s, tries), name=f"metrics {address}", daemon=True
    )
    thread.start()
    return thread


def _run(address: str, collector: Any, retry_s: float, tries: int) -> None:
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    server = _bound(address, make_wsgi_app(registry), retry_s, tries)
    if server is None:
        return
    # A forked child, such as NVRx's monitor of an in-process rank, would hold the port when this process is gone.
    os.register_at_fork(after_in_child=server.socket.close)
    logger.info("metrics: http://%s/metrics", address)
    server.serve_forever()


def _bound(address: str, app: Any, retry_s: float, tries: int) -> WSGIServer | None:
    host, _, port = address.rpartition(":")
    for left in range(tries - 1, -1, -1):
        try:
            return make_server(host, int(port), app, _Server, _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                logger.warning("no metrics are served at %s: %s", address, error.strerror)
                return None
            if left == tries - 1:
                logger.warning("the port of the metrics, %s, is taken; trying again for a while", address)
        time.sleep(retry_s)
    return None
