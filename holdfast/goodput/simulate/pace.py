"""How far training comes in a time in which nothing breaks, and what is committed by then.

Pure arithmetic: a stretch of a week takes as long to compute as one of a minute. Steps are numbered from 1; a stretch
that begins at step `first` has `first` steps behind it and does first + 1 next. The save after step m costs the step
after it: so a save after a stretch's last step costs nothing in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.goodput.simulate.settings import Durations, Policy


@dataclass(frozen=True, slots=True)
class Parts:
    """What the time of some steps was made of. Seconds; `productive` is what is left of the whole."""

    blocked_s: float
    hidden_s: float
    wait_s: float
    stall_s: float
    degraded_s: float


@dataclass(frozen=True, slots=True)
class _Saves:
    """One tier at one pace."""

    tier: int
    interval: int
    cost_s: float
    blocked_s: float
    hidden_s: float
    wait_s: float
    """What a save waits for the one before, if that is still being written; nothing for a stretch's first."""
    committed_after_s: float
    """From the end of its step to its commit."""


class Pace:
    """The arithmetic of a job that runs on all its nodes, or `slowdown` times slower on fewer."""

    def __init__(self, durations: Durations, policy: Policy, slowdown: float = 1.0) -> None:
        self._useful_s = durations.step_s
        self._stall_s = durations.data_stall_s
        self._step_s = durations.step_s * slowdown + durations.data_stall_s
        self._extra_s = durations.first_step_s
        used = [
            (i, tier, policy.intervals[tier.name])
            for i, tier in enumerate(durations.tiers)
            if tier.name in policy.intervals
        ]
        self._saves: list[_Saves] = []
        for index, tier, interval in used:
            save = tier.save
            # The time between two saves of this tier, with the saves of the others that surely lie in it.
            between = interval * self._step_s + sum((interval // other) * t.save.cost_s for _, t, other in used)
            wait = max(0.0, save.blocked_s + save.background_s - between)
            after = wait + save.blocked_s + save.background_s
            self._saves.append(_Saves(index, interval, save.cost_s, save.blocked_s, save.hidden_s, wait, after))
        self._slack_s = sum(one.cost_s + one.wait_s for one in self._saves)
        self._mean_s = self._step_s + sum((one.cost_s + one.wait_s) / one.interval for one in self._saves)

    def time_of(self, first: int, steps: int) -> float:
        """Seconds until so many steps are finished."""
        if steps < 1:
            return 0.0
        seconds = steps * self._step_s + self._extra_s
        last = first + steps - 1
        for one in self._saves:
            count = last // one.interval - first // one.interval
            if count:
                seconds += count * one.cost_s + (count - 1) * one.wait_s
        return seconds

    def steps_by(self, first: int, seconds: float) -> int:
        """Steps that are finished within so many seconds."""
        left = seconds - self._extra_s
        low = max(0, int((left - self._slack_s) / self._mean_s) - 1)
        high = max(1, int((left + 3 * self._slack_s) / self._mean_s) + 2)
        while high - low > 1:
            middle = (low + high) // 2
            if self.time_of(first, middle) <= seconds:
                low = middle
            else:
                high = middle
        return low

    def committed(self, first: int, steps: int, seconds: float) -> list[tuple[int, int]]:
        """(tier, newest step) of each tier with a commit within so many seconds, in which `steps` are finished."""
        found = []
        for one in self._saves:
            step = (first + steps) // one.interval * one.interval
            while step > first and self.time_of(first, step - first) + one.committed_after_s > seconds:
                step -= one.interval
            if step > first:
                found.append((one.tier, step))
        return found

    def parts(self, first: int, steps: int) -> Parts:
        """What the first `steps` steps of a stretch are made of, beside productive time."""
        blocked = hidden = wait = 0.0
        last = first + max(steps, 1) - 1
        for one in self._saves:
            count = last // one.interval - first // one.interval
            blocked += count * one.blocked_s
            hidden += count * one.hidden_s
            wait += max(0, count - 1) * one.wait_s
        degraded = steps * (self._step_s - self._stall_s - self._useful_s)
        return Parts(blocked, hidden, wait, steps * self._stall_s, degraded)

    def saves_between(self, first: int, steps: int) -> list[tuple[int, int, float]]:
        """(tier, step, seconds from the start of the stretch) of each save that is begun in it, in order."""
        found = [
            (one.tier, step, self.time_of(first, step - first))
            for one in self._saves
            for step in range(first // one.interval * one.interval + one.interval, first + steps + 1, one.interval)
        ]
        return sorted(found, key=lambda save: (save[1], save[0]))
