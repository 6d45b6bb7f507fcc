"""What single changes would buy, as the planner computes it and the report shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One change and what the job would do with it. Goodput 0 to 1, with the band of nine of ten runs."""

    name: str
    goodput: float
    low: float | None
    high: float | None
    """Of the band. None where a simulated run fails faster than it recovers."""
    saved_gpu_hours: float
    """Per month, against the job as it is and for the same work, spares counted. Negative: costs more."""
    saved_usd: float | None
    """The same in dollars, file system counted. None where the instance has no price."""


@dataclass(frozen=True)
class WhatIf:
    """The planner's answer for one run."""

    as_is: Change
    """The job as it is; its savings are 0."""
    changes: tuple[Change, ...]
    basis: str
    """In sentences: which model, calibrated on what, with which failure rate."""
    unit: str = "GPU"
    """What the hours are hours of: GPU, or rank on a CPU."""


@dataclass(frozen=True)
class NoWhatIf:
    """The planner has no answer for the run."""

    why: str
    """One sentence."""
