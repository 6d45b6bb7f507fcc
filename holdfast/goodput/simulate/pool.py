"""The nodes of a job and its spares: who is there, who is being repaired."""

from __future__ import annotations

import heapq
import math

import numpy as np

from holdfast.goodput.simulate.settings import Fleet


class Pool:
    """Counts of nodes. Nodes are alike: which one is broken makes no difference to the job."""

    def __init__(self, fleet: Fleet, random: np.random.Generator) -> None:
        self._fleet = fleet
        self._random = random
        self._returns: list[float] = []
        self.spares = fleet.spares
        """Healthy and idle."""
        self.running = fleet.nodes
        """Nodes that hold a place in the job."""

    @property
    def missing(self) -> int:
        """Places in the job without a node."""
        return self._fleet.nodes - self.running

    def next_return(self) -> float:
        """When the next node comes back; math.inf if none is away."""
        return self._returns[0] if self._returns else math.inf

    def take_returned(self, now: float) -> None:
        """Nodes that are back by now are spares."""
        while self._returns and self._returns[0] <= now:
            heapq.heappop(self._returns)
            self.spares += 1

    def break_running(self, now: float) -> None:
        """A node of the job goes away to be repaired."""
        self.running = max(0, self.running - 1)
        self._away(now)

    def break_spare(self, now: float, index: int) -> None:
        """Spare `index` fails, if it is one of those that are there."""
        if index < self.spares:
            self.spares -= 1
            self._away(now)

    def fill(self) -> None:
        """Idle spares take the empty places."""
        moved = min(self.missing, self.spares)
        self.spares -= moved
        self.running += moved

    def _away(self, now: float) -> None:
        repair = self._fleet.repair_s
        heapq.heappush(self._returns, now + (self._random.exponential(repair) if self._fleet.repair_varies else repair))
