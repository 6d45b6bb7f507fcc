"""What a save costs, when it is written in the background."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save of one tier. A synchronous save has a blocked part only."""

    blocked_s: float
    """Nothing else happens."""
    hidden_s: float = 0.0
    """What the steps during the background write take longer than others, in all."""
    background_s: float = 0.0
    """From the end of the blocked part until the commit. A failure before that loses the save."""

    def __post_init__(self) -> None:
        if not min(self.blocked_s, self.hidden_s, self.background_s) >= 0:
            raise ValueError(f"{self}: no time may be below 0")
        if self.hidden_s > self.background_s:
            raise ValueError(f"{self}: steps cannot be slowed down for longer than the background write lasts")

    @property
    def cost_s(self) -> float:
        """What the job loses per save: blocked and hidden."""
        return self.blocked_s + self.hidden_s

    @property
    def lag_s(self) -> float:
        """Work done between the save and its commit. A failure in it goes back one interval further."""
        return self.background_s - self.hidden_s

    @property
    def shortest_interval_s(self) -> float:
        """Least work between two saves if the second must not wait for the first one's background write."""
        return self.lag_s
