"""How long to train between two checkpoints: the formulas of Young and Daly, and the exact optimum. Times in seconds.

Throughout: `cost_s` is what one save costs the job, `mtbf_s` the job's mean time between failures (math.inf: none),
`restart_s` the time from a failure to the first new progress. Failures are a Poisson process; they also strike saves
and restarts. All raise ValueError for times that are negative or not numbers.

Young, CACM 17 (1974). Daly, FGCS 22 (2006).
"""

from __future__ import annotations

import math

_SERIES_BELOW = 1e-6
"""cost / mtbf below which Lambert's W loses digits next to its branch point (its error grows like 1e-16 / ratio) and
Daly's series is the better one (error ratio ** 1.5)."""


def young_s(cost_s: float, mtbf_s: float) -> float:
    """Young's interval: the square root of 2 x cost x time between failures."""
    _check(cost_s=cost_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_first_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's first order: Young's interval less the cost. May be negative where the cost is above 2 x mtbf_s."""
    return young_s(cost_s, mtbf_s) - cost_s


def daly_higher_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's higher order; the time between failures itself where a save costs more than twice that."""
    _check(cost_s=cost_s, mtbf_s=mtbf_s)
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    if math.isinf(mtbf_s):
        return math.inf
    half = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - cost_s


def exact_s(cost_s: float, mtbf_s: float) -> float:
    """The interval that minimizes daly_wall_s, by Lambert's W. It does not depend on the restart time."""
    _check(cost_s=cost_s, mtbf_s=mtbf_s)
    if math.isinf(mtbf_s) or cost_s / mtbf_s < _SERIES_BELOW:
        return daly_higher_s(cost_s, mtbf_s)
    from scipy.special import lambertw

    return mtbf_s * (1 + float(lambertw(-math.exp(-cost_s / mtbf_s - 1)).real))


def daly_wall_s(work_s: float, interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Expected wall time of `work_s` seconds of work: exact for Poisson failures. math.inf where it overflows."""
    _check(work_s=work_s, cost_s=cost_s, mtbf_s=mtbf_s, restart_s=restart_s)
    if not interval_s > 0:
        raise ValueError(f"interval_s is {interval_s}: it must be above 0")
    if math.isinf(mtbf_s):
        return work_s * (1 + cost_s / interval_s)
    try:
        return mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + cost_s) / mtbf_s) * work_s / interval_s
    except OverflowError:
        return math.inf


def daly_efficiency(interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Work per wall time, 0 to 1: what daly_wall_s means for a long job."""
    return 1 / daly_wall_s(1.0, interval_s, cost_s, mtbf_s, restart_s)


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if math.isnan(value) or value < 0 or (name == "mtbf_s" and value == 0):
            raise ValueError(f"{name} is {value}: it must be {'above' if name == 'mtbf_s' else 'at least'} 0")
