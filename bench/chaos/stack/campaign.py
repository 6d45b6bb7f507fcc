"""All seeds that are missing, several at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.chaos.stack.job import Interrupted
from bench.chaos.stack.records import Line
from bench.chaos.stack.schedule import Schedule
from bench.chaos.stack.trial import attempt
from bench.chaos.stack.weights import Weights

PACKAGE = "bench.chaos"
Show = Callable[[Line, list[str]], None]


def jobs_at_once() -> int:
    """As many as there are cores, up to eight: a job keeps one busy, most of the time with imports."""
    return max(1, min(8, len(os.sched_getaffinity(0))))


def repeat(seed: int) -> str:
    """The command that repeats a seed."""
    return f"python -m {PACKAGE} --campaign stack --seed {seed}"


class StackCampaign:
    """Use as a context manager: no process of it lives on."""

    def __init__(self, out: Path, code: str, show: Show, keep: Callable[[Line], None]) -> None:
        """out: work folder. show, keep: get each seed's line once it is judged, one at a time."""
        self._out = out
        self._show = show
        self._keep = keep
        self._stopping = threading.Event()
        self._weights = Weights(out / "peace", code, self._stopping)
        self._telling = threading.Lock()

    def __enter__(self) -> StackCampaign:
        self._out.mkdir(parents=True, exist_ok=True)
        self._weights.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._weights.__exit__()

    def go(self, seeds: Sequence[int], deadline: float = float("inf"), jobs: int | None = None) -> None:
        """Run and judge these seeds; begin none after `deadline` (monotonic). Raises BrokenPeace."""
        with ThreadPoolExecutor(jobs or jobs_at_once(), thread_name_prefix="chaos") as pool:
            futures = [pool.submit(self._one, seed, deadline) for seed in seeds]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stopping.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, seed: int, deadline: float) -> None:
        if time.monotonic() >= deadline or self._stopping.is_set():
            return
        try:
            line, witnesses = attempt(Schedule.draw(seed), self._out / f"seed-{seed}", self._weights, self._stopping)
        except Interrupted:
            return
        with self._telling:
            self._keep(line)
            self._show(line, witnesses)


def work_path(out: Path) -> Path:
    """File with the lines of all seeds that were done."""
    return out / "schedules.jsonl"
