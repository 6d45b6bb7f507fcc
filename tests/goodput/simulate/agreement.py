"""Random jobs inside the closed form's envelope, and faults that are spread so evenly that few of them suffice."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import Cure, Durations, Fleet, GivenFault, Policy, Tier, expected_goodput
from holdfast.goodput.simulate.draws import DAY_S

KINDS = ("exception", "hang", "node_loss")


@dataclass(frozen=True)
class Case:
    """A job with a closed form."""

    durations: Durations
    fleet: Fleet
    policy: Policy
    expected: float


def case(draw: random.Random) -> Case:
    """One that has an estimate: others are drawn again."""
    while True:
        durations, fleet, policy = _job(draw)
        expected = expected_goodput(durations, fleet, policy)
        if expected.number is not None:
            return Case(durations, fleet, policy, expected.number)


def _job(draw: random.Random) -> tuple[Durations, Fleet, Policy]:
    mtbf_s = 10 ** draw.uniform(3.3, 5.0)
    step_s = draw.uniform(0.5, 12.0)
    interval = max(1, round(mtbf_s * 10 ** draw.uniform(-2.2, -0.7) / step_s))
    tiers = [_tier(draw, "shared", interval * step_s, mtbf_s)]
    intervals = {"shared": interval}
    if draw.random() < 0.5:
        below = max(1, interval // draw.randint(2, 12))
        intervals = {"local": below, "shared": below * draw.randint(2, 12)}
        # Certainties: what is left to chance adds to the error of the comparison; chances have a test of their own.
        recoverable = {"node_loss": 0.0, "hang": draw.choice([0.0, 1.0])}
        local = _tier(draw, "local", below * step_s, mtbf_s)
        tiers.insert(0, Tier(name="local", save=local.save, restore_s=local.restore_s, recoverable=recoverable))
    longest = mtbf_s * 10 ** draw.uniform(-3, -0.8)
    cures = {
        ("exception", IN_PROCESS): Cure(detection_s=draw.uniform(0, 0.1) * longest, restart_s=0.1 * longest),
        ("hang", IN_JOB): Cure(detection_s=draw.uniform(0, 1) * longest, restart_s=0.5 * longest),
        ("node_loss", NODE): Cure(detection_s=draw.uniform(0, 0.5) * longest, restart_s=longest),
    }
    shares = [draw.uniform(0.2, 1) for _ in KINDS]
    rates = {kind: DAY_S / mtbf_s * share / sum(shares) for kind, share in zip(KINDS, shares, strict=True)}
    durations = Durations(
        step_s=step_s, data_stall_s=draw.choice([0.0, 0.02]) * step_s, tiers=tuple(tiers), cures=cures
    )
    # Software's rate belongs to the job; so many spares that none is ever missing.
    fleet = Fleet(nodes=64, spares=64, per_job_day=rates, repair_s=mtbf_s / 10)
    return durations, fleet, Policy(intervals=intervals, layers=frozenset({IN_PROCESS, IN_JOB, NODE}))


def _tier(draw: random.Random, name: str, interval_s: float, mtbf_s: float) -> Tier:
    cost = interval_s * 10 ** draw.uniform(-3.5, -0.8)
    background = draw.choice([0.0, draw.uniform(0.0, 0.8) * interval_s])
    hidden = min(background, draw.choice([0.0, cost]))
    save = Save(blocked_s=cost, hidden_s=hidden, background_s=background)
    return Tier(name=name, save=save, restore_s=mtbf_s * 10 ** draw.uniform(-4, -1.5))


def spread_faults(one: Case, count: int, draw: random.Random) -> tuple[list[GivenFault], float]:
    """Faults of a Poisson process, stratified: each quantile of the gaps is drawn once, each kind in its proportion.

    What is averaged over them has the process's mean, and a far smaller error than with as many independent ones.
    Returns them, and the end in days: the time of the last.
    """
    rates = one.fleet.per_job_day
    total = sum(rates.values())
    gaps = [-math.log1p(-(i + draw.random()) / count) * DAY_S / total for i in range(count)]
    draw.shuffle(gaps)
    kinds: list[str] = []
    for kind, rate in rates.items():
        kinds += [kind] * round(count * rate / total)
    kinds = (kinds + list(rates))[:count]
    draw.shuffle(kinds)
    now, faults = 0.0, []
    for gap, kind in zip(gaps, kinds, strict=True):
        now += gap
        faults.append(GivenFault(kind=kind, at_s=now))
    return faults, now / DAY_S
