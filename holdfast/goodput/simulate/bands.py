"""Many seeds: the middle and the band in which most of them lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LOW, HIGH = 5.0, 95.0
"""Percentiles of a band: nine of ten runs lie in it."""


@dataclass(frozen=True)
class Band:
    """Spread of a number over seeds, linearly interpolated."""

    low: float
    median: float
    high: float
    mean: float
    count: int


def band(values: Iterable[float]) -> Band:
    """The band of at least one number. Raises ValueError for none."""
    numbers = np.asarray(list(values), dtype=float)
    if not numbers.size:
        raise ValueError("a band needs at least one number")
    low, middle, high = np.percentile(numbers, [LOW, 50.0, HIGH])
    return Band(float(low), float(middle), float(high), float(numbers.mean()), int(numbers.size))
