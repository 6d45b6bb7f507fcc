"""Closed forms for failures, checkpoints and spares. Pure: numbers in, numbers out; the formulas' names say whose.

`intervals` and `published` hold the bare formulas, which answer whatever they are asked. What a person should bet on is
an `Estimate` (`estimate`): it holds a number only where the model is known to hold, and else the reasons.
"""

from holdfast.goodput.model.estimate import MOST_PRESSURE, Estimate, OutsideModelError
from holdfast.goodput.model.intervals import (
    daly_efficiency,
    daly_first_s,
    daly_higher_s,
    daly_wall_s,
    exact_s,
    young_s,
)
from holdfast.goodput.model.levels import Level, efficiency, optimal_intervals
from holdfast.goodput.model.published import ettr, runtime_goodput
from holdfast.goodput.model.rates import job_failures_per_day, mtbf_s
from holdfast.goodput.model.saves import Save
from holdfast.goodput.model.spares import shortage, spares_for, unavailability

__all__ = [
    "MOST_PRESSURE",
    "Estimate",
    "Level",
    "OutsideModelError",
    "Save",
    "daly_efficiency",
    "daly_first_s",
    "daly_higher_s",
    "daly_wall_s",
    "efficiency",
    "ettr",
    "exact_s",
    "job_failures_per_day",
    "mtbf_s",
    "optimal_intervals",
    "runtime_goodput",
    "shortage",
    "spares_for",
    "unavailability",
    "young_s",
]
