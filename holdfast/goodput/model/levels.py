"""Checkpoints in several tiers: the share of time that is work, exact for Poisson failures, and the best intervals.

Levels are nested: between two saves of a level lie several of the level below. A failure that level i cures throws the
job back to its newest save of level i or above. A stretch of wall time w is either finished or cut short by a failure;
so is any sequence of stretches, and so is one that is tried again and again after the failures that its own level
cures. Folding the levels from the lowest to the highest gives the expected wall time of the whole without a simulation
(a Markov chain, as in Moody et al., SC'10, whose lumping is exact because failures have no memory).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.goodput.model.estimate import Estimate, OutsideModelError, estimate, too_much_pressure
from holdfast.goodput.model.intervals import exact_s

_WHAT = "share of time that is work"
_MOST_RATIO = 100_000
"""Saves of a lower level between two of the next."""
_MOST_EXPONENT = 700.0
"""exp of more leaves the range of floats."""
_MOST_FAILURES = 20.0
"""Expected in one interval. With more, one in 5e8 is ever finished, and rounding decides what the terms say."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One tier of checkpoints, and the failures that go back to it. Times in seconds."""

    interval_s: float
    """Work between two saves; a multiple of that of the level below."""
    cost_s: float
    """What the job loses per save: blocked and hidden (Save.cost_s)."""
    lag_s: float = 0.0
    """Work done between a save and its commit (Save.lag_s)."""
    failures_per_s: float
    """Rate of the failures that this level cures and no lower one does."""
    recoveries: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    """(share, seconds from the failure to the first new progress); the shares sum to 1."""
    repeats: tuple[tuple[float, float], ...] = ()
    """The same for a recovery that a failure of this level or a lower one has begun anew; empty: as the first time."""


@dataclass(frozen=True)
class _Stretch:
    """finished: probability that it ends well. seconds: expected wall time until it ends well or a failure ends it."""

    finished: float
    seconds: float


def efficiency(levels: Sequence[Level]) -> Estimate:
    """Work per wall time, 0 to 1, of a long job. levels: fastest first, the last one cures everything that is left.

    Raises ValueError if the levels are not nested or shares do not sum to 1. The lag is exact for one level and of
    first order for several. No number where failures come so fast that no recovery ends.
    """
    _check(levels)
    try:
        _refuse_hopeless(levels)
        number = _efficiency(levels)
    except OutsideModelError as error:
        return Estimate(_WHAT, None, (str(error),))
    saves = sum(level.cost_s / level.interval_s for level in levels)
    waits = [
        f"a save begins every {level.interval_s:.0f} s of work and is committed only after {level.lag_s:.0f} s more: "
        "each would wait for the one before"
        for level in levels
        if level.lag_s > level.interval_s
    ]
    reasons = waits + too_much_pressure(1 - number * (1 + saves))
    return estimate(_WHAT, number, reasons)


def optimal_intervals(levels: Sequence[Level]) -> tuple[float, ...]:
    """The best interval of each level (seconds of work), none shorter than its lag; `interval_s` as given is ignored.

    Every level must have failures, else its interval has no optimum: ValueError. OutsideModelError where failures come
    so fast that no recovery ends, whatever the interval.
    """
    if not levels or any(level.failures_per_s <= 0 or level.cost_s <= 0 for level in levels):
        raise ValueError("each level needs failures that go back to it and a cost, else no interval is the best one")
    alone = [max(exact_s(level.cost_s, 1 / level.failures_per_s), level.lag_s) for level in levels]
    if len(levels) == 1:
        _efficiency([replace(levels[0], interval_s=alone[0])])  # raises where no interval helps
        return (alone[0],)
    ratios = [max(1, min(_MOST_RATIO, round(above / below))) for below, above in pairwise(alone)]
    best = _best_first(levels, ratios)
    for index in range(len(ratios)):
        best, ratios = _best_ratio(levels, ratios, index, best)
    return _intervals(best[1], ratios)


def _best_ratio(
    levels: Sequence[Level], ratios: list[int], index: int, best: tuple[float, float]
) -> tuple[tuple[float, float], list[int]]:
    """Walk ratio `index` up or down as long as that helps; steps grow with the ratio, so the walk is short."""
    for direction in (1, -1):
        step = max(1, ratios[index] // 10)
        while step:
            tried = [*ratios]
            tried[index] += direction * step
            found = _best_first(levels, tried) if 1 <= tried[index] <= _MOST_RATIO else (0.0, 0.0)
            if found[0] > best[0]:
                best, ratios = found, tried
            else:
                step //= 2
    return best, ratios


def _best_first(levels: Sequence[Level], ratios: Sequence[int]) -> tuple[float, float]:
    """(efficiency, lowest interval) at the best lowest interval for these ratios."""
    from scipy.optimize import minimize_scalar

    factors = _intervals(1.0, ratios)
    floor = max(level.lag_s / factor for level, factor in zip(levels, factors, strict=True))
    guess = exact_s(levels[0].cost_s, 1 / levels[0].failures_per_s)
    low, high = math.log(max(floor, guess / 30)), math.log(max(floor, guess) * 30)

    def loss(log_interval: float) -> float:
        intervals = _intervals(math.exp(log_interval), ratios)
        return -_efficiency([replace(one, interval_s=t) for one, t in zip(levels, intervals, strict=True)])

    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    at_floor = -loss(low)
    return (at_floor, math.exp(low)) if at_floor >= -found.fun else (-float(found.fun), math.exp(float(found.x)))


def _intervals(first: float, ratios: Sequence[int]) -> tuple[float, ...]:
    intervals = [first]
    for ratio in ratios:
        intervals.append(intervals[-1] * ratio)
    return tuple(intervals)


def _refuse_hopeless(levels: Sequence[Level]) -> None:
    total = sum(level.failures_per_s for level in levels)
    for index, level in enumerate(levels):
        ending = sum(one.failures_per_s for one in levels[index:])
        if ending * level.interval_s > _MOST_FAILURES:
            raise OutsideModelError(_too_fast(ending, level.interval_s, "interval between saves"))
        if total * level.cost_s > _MOST_FAILURES:
            raise OutsideModelError(_too_fast(total, level.cost_s, "save"))


def _efficiency(levels: Sequence[Level]) -> float:
    rates = [level.failures_per_s for level in levels]
    total = sum(rates)
    block = _again(_raw(levels[0].interval_s + levels[0].cost_s, total), levels, 0)
    for index in range(1, len(levels)):
        saved = _raw(levels[index].cost_s, total)
        for lower in range(index):
            saved = _again(saved, levels, lower)
        count = round(levels[index].interval_s / levels[index - 1].interval_s)
        block = _again(_then(_repeated(block, count), saved), levels, index)
    # Work that was done after the newest commit's state was taken is lost as well: exact for one level.
    late = math.exp(-sum(level.failures_per_s * lag for level, lag in zip(levels, _lags(levels), strict=True)))
    return late * levels[-1].interval_s / block.seconds if block.seconds else 0.0


def _lags(levels: Sequence[Level]) -> list[float]:
    """Work that each level's failures lose on average beyond the interval, because commits come late."""
    lags: list[float] = []
    for index in reversed(range(len(levels))):
        level = levels[index]
        # A lower level's failure leaves the level's work alone but not the write under way: that save is lost, and the
        # next one comes a whole interval later.
        lower = sum(one.failures_per_s for one in levels[:index])
        if lower * level.lag_s > _MOST_EXPONENT:
            raise OutsideModelError(_too_fast(lower, level.lag_s, "write of a checkpoint"))
        lag = level.lag_s + (level.interval_s + level.cost_s) * math.expm1(lower * level.lag_s)
        if lags:
            # Every so often a save of the next level is taken with it, and may be committed sooner.
            shared = level.interval_s / levels[index + 1].interval_s
            lag = (1 - shared) * lag + shared * min(lag, lags[0])
        lags.insert(0, lag)
    return lags


def _raw(wall_s: float, failures_per_s: float) -> _Stretch:
    """A stretch that any failure ends."""
    if failures_per_s == 0:
        return _Stretch(1.0, wall_s)
    return _Stretch(math.exp(-failures_per_s * wall_s), -math.expm1(-failures_per_s * wall_s) / failures_per_s)


def _then(first: _Stretch, second: _Stretch) -> _Stretch:
    if first.finished == 0:
        return first
    return _Stretch(first.finished * second.finished, first.seconds + first.finished * second.seconds)


def _repeated(one: _Stretch, count: int) -> _Stretch:
    """The same stretch so many times in a row."""
    if one.finished == 0:
        return one
    power = count * math.log(one.finished)  # finished**count, which Python refuses where the result is subnormal
    begun = count if one.finished == 1 else -math.expm1(power) / (1 - one.finished)
    return _Stretch(math.exp(power), one.seconds * begun)


def _again(stretch: _Stretch, levels: Sequence[Level], index: int) -> _Stretch:
    """The stretch, tried again after every failure that level `index` cures; failures of higher levels end it."""
    rates = [level.failures_per_s for level in levels]
    total, cured, left = sum(rates), sum(rates[: index + 1]), sum(rates[index:])
    if left == 0:
        return stretch
    recovered, recovery_s = _recovery(levels[index], cured / total, total)
    own = (1 - stretch.finished) * rates[index] / left
    repeats = 1 - own * recovered
    if repeats <= 0:
        return _Stretch(0.0, math.inf)
    finished = min(1.0, stretch.finished / repeats)  # above 1 by rounding, where next to no try ends well
    return _Stretch(finished, (stretch.seconds + own * recovery_s) / repeats)


def _recovery(level: Level, cured: float, failures_per_s: float) -> tuple[float, float]:
    """(probability that it ends well, expected seconds). A failure begins it anew, or ends it if it needs a higher
    level; `cured` is the share of the failures that do not."""
    first = sum(share * math.exp(-failures_per_s * seconds) for share, seconds in level.recoveries)
    later = sum(share * math.exp(-failures_per_s * seconds) for share, seconds in level.repeats or level.recoveries)
    if (1 - later) * cured >= 1:
        # Nothing leads out of it: its chance to end is below what a float can tell from none.
        shortest = min(seconds for share, seconds in level.repeats or level.recoveries if share)
        raise OutsideModelError(_too_fast(failures_per_s, shortest, "recovery"))
    again = (1 - first) * cured / (1 - (1 - later) * cured)
    return first + again * later, (1 - first + again * (1 - later)) / failures_per_s


def _too_fast(failures_per_s: float, lasts_s: float, what: str) -> str:
    return (
        f"a failure every {1 / failures_per_s:.3g} s leaves no {what} of {lasts_s:.3g} s a chance to end: it fails so "
        "much faster than it recovers that there is nothing to compute"
    )


def _check(levels: Sequence[Level]) -> None:
    if not levels:
        raise ValueError("there is no level")
    for level in levels:
        if not level.interval_s > 0 or not min(level.cost_s, level.lag_s, level.failures_per_s) >= 0:
            raise ValueError(f"{level}: the interval must be above 0, the other numbers at least 0")
        times = (level.recoveries, level.repeats or level.recoveries)
        if any(abs(sum(share for share, _ in shares) - 1) > 1e-9 for shares in times):
            raise ValueError(f"{level}: the shares of its recoveries do not sum to 1")
    for below, above in pairwise(levels):
        ratio = above.interval_s / below.interval_s
        if ratio < 0.999 or abs(ratio - round(ratio)) > 1e-6 * ratio:
            raise ValueError(f"an interval of {above.interval_s} s is no multiple of {below.interval_s} s below it")
