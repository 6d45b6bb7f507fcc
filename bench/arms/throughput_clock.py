"""Times of steps without a wait of the host: by the device's own clock where there is one."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Clock:
    """`stamp` at each boundary between two steps; `seconds` of all of them afterwards."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._events: list[torch.cuda.Event] = []
        self._stamps: list[float] = []

    def stamp(self) -> None:
        """Here one step ends and the next begins."""
        if not self._cuda:
            self._stamps.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """Of each step. Waits for the device."""
        if not self._cuda:
            return [after - before for before, after in pairwise(self._stamps)]
        self._events[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(self._events)]
