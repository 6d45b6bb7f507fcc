"""Waiting for something that other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Look until the condition holds; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
