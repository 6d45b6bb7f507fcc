"""What is written down of the interruptions while they go on."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.goodput.simulate.draws import Strike
from holdfast.goodput.simulate.result import Interruption


@dataclass(slots=True)
class _Open:
    """An interruption that may still change."""

    strike: Strike
    layer: str
    detected_s: float | None = None
    recovered_s: float | None = None
    lost_steps: int = 0
    tier: str | None = None


class Record:
    """The interruptions of one run. Those since training last went on are overcome together."""

    def __init__(self) -> None:
        self._all: list[_Open] = []
        self._first = 0
        """Index of the first one that is not overcome."""

    def __len__(self) -> int:
        return len(self._all)

    def struck(self, strike: Strike, layer: str) -> None:
        """A new interruption."""
        self._all.append(_Open(strike, layer))

    def noticed(self, now: float, layer: str) -> None:
        """The newest one was noticed, and this layer acts."""
        newest = self._all[-1]
        newest.layer, newest.detected_s = layer, now - newest.strike.at

    def restored(self, lost_steps: int, tier: str | None) -> None:
        """State is loaded. What is lost counts for the first of those that are overcome together."""
        if self._first < len(self._all):
            first = self._all[self._first]
            first.lost_steps += lost_steps
            first.tier = tier

    def overcome(self, now: float) -> None:
        """Training goes on."""
        for one in self._all[self._first :]:
            one.recovered_s = now - one.strike.at
        self._first = len(self._all)

    def interruptions(self) -> tuple[Interruption, ...]:
        """All of them, in order of time."""
        return tuple(
            Interruption(
                o.strike.at, o.strike.kind, o.strike.node, o.layer, o.detected_s, o.recovered_s, o.lost_steps, o.tier
            )
            for o in self._all
        )
