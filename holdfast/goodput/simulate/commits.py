"""Which step is committed on which tier."""

from __future__ import annotations

import numpy as np

from holdfast.goodput.simulate.settings import Durations, Policy, Tier


class Commits:
    """The newest committed step of each tier. Tiers are named by their index in durations.tiers."""

    def __init__(self, durations: Durations, policy: Policy, random: np.random.Generator) -> None:
        self._tiers = durations.tiers
        self._random = random
        self._newest: dict[int, int] = {}
        last = len(self._tiers) - 1
        self.shared = last if last >= 0 and self._tiers[last].name in policy.intervals else None
        """The tier that outlives everything; None if nothing is saved to it."""

    def add(self, tier: int, step: int) -> None:
        """A save of this step is committed."""
        self._newest[tier] = step

    def has(self, tier: int, step: int) -> bool:
        """Whether this step is the newest one there."""
        return self._newest.get(tier) == step

    def lose(self, kind: str) -> None:
        """A fault strikes: each tier outlives it or not, by chance."""
        for index, tier in enumerate(self._tiers):
            chance = tier.recoverable.get(kind, 1.0)
            if chance < 1 and self._random.random() >= chance:
                self._newest.pop(index, None)

    def go_back(self) -> tuple[int, Tier | None]:
        """The newest step that is left, from the faster of two tiers that have it; newer ones never count again.

        (0, None) if there is none: the run begins anew.
        """
        if not self._newest:
            return 0, None
        tier, step = max(self._newest.items(), key=lambda one: (one[1], -one[0]))
        return step, self._tiers[tier]
