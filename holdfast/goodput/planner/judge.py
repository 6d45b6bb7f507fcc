"""How good a choice is: by the closed form where it holds, else by simulation, else not at all and why."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.problems import ConfigError
from holdfast.goodput.model.rates import hardware_alone
from holdfast.goodput.planner.setting import Choice, Setting, durations_of, fleet_of, policy_of
from holdfast.goodput.simulate import Band, band, expected_goodput, simulate

DAYS = 30.0
"""A band is that of so many days: over a longer time, runs are more alike."""
SEEDS = 20
MOST_FAULTS = 1000
"""Faults in one simulated run; a job that fails more often is simulated for a shorter time."""
QUICK_SEEDS, QUICK_FAULTS = 3, 300
"""The same where a number is only to tell the better of two choices, which the same faults strike."""
_FEWEST_DAYS = 0.01


@dataclass(frozen=True)
class Simulated:
    """Goodput over seeds, queue and start-up included."""

    goodput: Band
    days: float
    """Simulated time of each run."""


def never_a_number(setting: Setting) -> list[str]:
    """Why nothing that rests on this failure rate can be believed, neither computed nor simulated; empty if it can."""
    rate = setting.rate
    per_day = rate.hardware_per_node_day * setting.nodes + rate.software_per_job_day
    return hardware_alone(rate.software_per_job_day, per_day, setting.nodes)


def computed(setting: Setting, choice: Choice) -> tuple[float | None, tuple[str, ...]]:
    """(goodput of a long job by the closed form, ()), or (None, why it has none)."""
    durations, fleet, policy = durations_of(setting, choice), fleet_of(setting, choice), policy_of(setting, choice)
    found = expected_goodput(durations, fleet, policy)
    return found.number, found.outside


def simulated(setting: Setting, choice: Choice, seeds: int = SEEDS, most_faults: int = MOST_FAULTS) -> Simulated:
    """The spread over seeds; the same seeds strike every choice with the same faults.

    Raises ConfigError for a job that fails faster than it recovers.
    """
    durations, fleet, policy = durations_of(setting, choice), fleet_of(setting, choice), policy_of(setting, choice)
    per_day = sum(fleet.per_day(kind) for kind in fleet.kinds)
    days = DAYS if per_day * DAYS <= most_faults else max(_FEWEST_DAYS, most_faults / per_day)
    runs = (simulate(durations, fleet, policy, seed=seed, days=days) for seed in range(seeds))
    return Simulated(band(run.goodput for run in runs), days)


@dataclass(frozen=True)
class Judged:
    """A choice and what is to be expected of it."""

    choice: Choice
    goodput: float | None
    """Productive share of wall time of a long job, 0 to 1; None outside the model."""
    how: str
    """`computed`, `simulated`, or `none`."""
    reasons: tuple[str, ...] = ()
    """Why it was not computed, or why there is no number at all."""


def judge(setting: Setting, choice: Choice, *, by_simulation: bool = False) -> Judged:
    """The closed form's answer, or the mean of the simulated runs where it has none or is not wanted."""
    never = never_a_number(setting)
    if never:
        return Judged(choice, None, "none", tuple(never))
    number, why = computed(setting, choice)
    if number is not None and not by_simulation:
        return Judged(choice, number, "computed")
    try:
        return Judged(choice, simulated(setting, choice).goodput.mean, "simulated", why)
    except ConfigError as error:
        return Judged(choice, None, "none", (*why, *(str(problem) for problem in error.problems)))


def spread_of(setting: Setting, judged: Judged) -> Simulated | None:
    """The band of what was judged; None outside the model, and where a simulated run fails faster than it recovers."""
    if judged.goodput is None:
        return None
    try:
        return simulated(setting, judged.choice)
    except ConfigError:
        return None
