"""Looks at metrics: as a collector yields them, and as a scraper sees them."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from holdfast import metrics
from trainer.runtime import Identity

LIMIT_S = 30.0
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def identity(rank: int = 0, **changes: Any) -> Identity:
    made: dict[str, Any] = {"world_size": 2, "local_rank": 0, "generation": 3, "cycle": 2}
    return Identity(rank=rank, pod="p", node="n", store="", **(made | changes))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def until(what: str, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:g} s: {what}")


def scraped(address: str) -> str:
    """The page; empty while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            page: bytes = answer.read()
            return page.decode()
    except (urllib.error.URLError, OSError):
        return ""


def samples(collector: Any) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def value(collector: Any, series: metrics.Metric | str, **labels: str) -> float | None:
    """A sample of run cpu-test, by default of rank 0."""
    name = series if isinstance(series, str) else series.name
    asked = {"run": "cpu-test", "rank": "0"} | labels
    return samples(collector).get((name, tuple(sorted(asked.items()))))
