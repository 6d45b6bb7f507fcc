"""What single changes would buy, as the planner computes it and the report shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One change and what the job would do with it. Goodput 0 to 1, with its confidence band."""

    name: str
    goodput: float
    low: float
    high: float
    saved_gpu_hours: float
    """Per month, against the job as it is. Negative: costs more."""
    saved_usd: float | None
    """The same in dollars. None where the instance has no price."""


@dataclass(frozen=True)
class WhatIf:
    """The planner's answer for one run."""

    as_is: Change
    """The job as it is; its savings are 0."""
    changes: tuple[Change, ...]
    basis: str
    """One sentence: which model, calibrated on what, with which failure rate."""
