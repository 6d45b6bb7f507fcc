"""The closed form for a job that can be simulated: its expected goodput, or why no formula can be trusted with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from holdfast.config.failure_rates import FAULT_KINDS
from holdfast.goodput.attempts import NODE
from holdfast.goodput.model.estimate import Estimate, estimate
from holdfast.goodput.model.levels import Level, efficiency, optimal_intervals
from holdfast.goodput.model.rates import hardware_alone
from holdfast.goodput.model.spares import shortage, unavailability
from holdfast.goodput.simulate.draws import DAY_S
from holdfast.goodput.simulate.settings import PERSON, Durations, Fleet, Policy, Tier, check, cure_of, layer_of

_WHAT = "goodput of a long job"


def expected_goodput(durations: Durations, fleet: Fleet, policy: Policy) -> Estimate:
    """Productive share of the wall time of a long job, without its start and its end, 0 to 1.

    Exact for one tier and faults that are alike, within 1 % of the simulation for the rest as long as it has a number
    at all. It has none for an elastic job, for saves that wait for one another, for tiers whose intervals are no
    multiples, for small jobs whose rates are hardware's alone, and beyond the pressure that closed forms bear.
    """
    check(durations, fleet, policy)
    reasons = [*_reasons(durations, fleet, policy)]
    if reasons:
        return Estimate(_WHAT, None, tuple(reasons))
    share = efficiency(levels_of(durations, fleet, policy))
    if share.number is None:
        return Estimate(_WHAT, None, share.outside)
    useful = durations.step_s / (durations.step_s + durations.data_stall_s)
    # What a first step takes longer is lost time, and yet the ledger, which cannot tell, calls it productive.
    failures = sum(fleet.per_day(kind) for kind in fleet.kinds) / DAY_S
    number = share.number * useful / (1 + _planned(durations, fleet, policy)) + failures * durations.first_step_s
    return estimate(_WHAT, number)


def best_intervals(durations: Durations, fleet: Fleet, policy: Policy) -> dict[str, int]:
    """The best interval in steps of each tier that `policy` uses, nested, none shorter than its background write.

    The intervals in `policy` say which tiers are used; their values do not matter. Raises ValueError if no fault goes
    back to one of them, or if its saves cost nothing: then no interval is the best one.
    """
    check(durations, fleet, policy)
    step_s = durations.step_s + durations.data_stall_s
    levels = levels_of(durations, fleet, policy)
    best = optimal_intervals(levels)
    found: dict[str, int] = {}
    unit, unit_s = 1, step_s
    for tier, level, seconds in zip(_used(durations, policy), levels, best, strict=True):
        unit *= max(1, round(seconds / unit_s), math.ceil(level.lag_s / (unit * step_s)))
        found[tier.name], unit_s = unit, seconds
    return found


def levels_of(durations: Durations, fleet: Fleet, policy: Policy) -> tuple[Level, ...]:
    """The tiers in use as levels of the closed form, with the faults that go back to each."""
    step_s = durations.step_s + durations.data_stall_s
    used = _used(durations, policy)
    kinds = [kind for kind in fleet.kinds if fleet.per_day(kind) > 0 and not FAULT_KINDS[kind].announced]
    left = dict.fromkeys(kinds, 1.0)
    gone = dict.fromkeys(kinds, 0.0)
    levels = []
    for tier in used:
        first: list[tuple[float, float]] = []
        again: list[tuple[float, float]] = []
        for kind in kinds:
            chance = 1.0 if tier is used[-1] else tier.recoverable.get(kind, 1.0)
            here = left[kind] * chance
            left[kind] -= here
            gone[kind] += here
            for share, s in _recoveries(kind, tier, durations, fleet, policy):
                first.append((fleet.per_day(kind) * here * share, s))
                # The faster tiers are behind by now, so faults that they would have cured go back to this one too.
                again.append((fleet.per_day(kind) * gone[kind] * share, s))
        rate = sum(weight for weight, _ in first)
        levels.append(
            Level(
                interval_s=policy.intervals[tier.name] * step_s,
                cost_s=tier.save.cost_s,
                lag_s=max(0.0, tier.save.lag_s),
                failures_per_s=rate / DAY_S,
                recoveries=_shares(first),
                repeats=_shares(again),
            )
        )
    return tuple(levels)


def _shares(weights: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    whole = sum(weight for weight, _ in weights)
    return tuple((weight / whole, s) for weight, s in weights if weight) if whole else ((1.0, 0.0),)


def _recoveries(kind: str, tier: Tier, durations: Durations, fleet: Fleet, policy: Policy) -> list[tuple[float, float]]:
    """(share, seconds until training goes on) of a kind of fault: with a spare at hand, and without."""
    layer = layer_of(kind, durations, policy)
    cure = cure_of(kind, layer, durations)
    with_spare = cure.detection_s + cure.restart_s + tier.restore_s + durations.first_step_s
    if layer == PERSON:
        with_spare += durations.queue_s + durations.init_s
    if not FAULT_KINDS[kind].takes_node:
        return [(1.0, with_spare)]
    away = unavailability(sum(fleet.per_node_day.get(k, 0.0) for k in _breaking(fleet)), fleet.repair_s / DAY_S)
    # The failing node finds the others as they are at any time: short if all spares are among those that are out.
    none = 1.0 if fleet.spares == 0 else shortage(fleet.nodes, fleet.spares - 1, away)
    # The first of all that are out comes back: exponential times have no memory, equal ones are spread evenly.
    wait = fleet.repair_s / (fleet.spares + (1 if fleet.repair_varies else 2))
    if not fleet.repair_varies and fleet.spares == 0:
        wait = max(0.0, fleet.repair_s - cure.detection_s)
    higher = NODE if NODE in policy.layers and (kind, NODE) in durations.cures else layer
    without = with_spare - cure.restart_s + cure_of(kind, higher, durations).restart_s + wait
    return [(1 - none, with_spare), (none, without)]


def _breaking(fleet: Fleet) -> list[str]:
    return [kind for kind in fleet.kinds if FAULT_KINDS[kind].takes_node]


def _planned(durations: Durations, fleet: Fleet, policy: Policy) -> float:
    """Wall time that announced interruptions add, per time of training: they lose no work."""
    seconds = 0.0
    for kind in fleet.kinds:
        if FAULT_KINDS[kind].announced:
            last = _used(durations, policy)[-1]
            cure = cure_of(kind, layer_of(kind, durations, policy), durations)
            pause = last.save.blocked_s + last.save.background_s + cure.restart_s + last.restore_s
            seconds += fleet.per_day(kind) / DAY_S * (pause + durations.first_step_s)
    return seconds


def _used(durations: Durations, policy: Policy) -> list[Tier]:
    return [tier for tier in durations.tiers if tier.name in policy.intervals]


def _reasons(durations: Durations, fleet: Fleet, policy: Policy) -> Sequence[str]:
    reasons = []
    used = _used(durations, policy)
    if not used:
        reasons.append("nothing is saved, so a long job never ends")
    if policy.elastic:
        reasons.append("an elastic job's speed depends on its past; simulate it")
    intervals = [policy.intervals[tier.name] for tier in used]
    if any(above % below for below, above in pairwise(intervals)):
        reasons.append("the tiers' intervals are no multiples of one another")
    software = sum(fleet.per_job_day.values())
    reasons += hardware_alone(software, sum(fleet.per_day(kind) for kind in fleet.kinds), fleet.nodes)
    return reasons
