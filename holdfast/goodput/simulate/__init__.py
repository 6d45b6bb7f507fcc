"""Simulates a job for days of wall time: failures, spares, layers, tiers. Seeded; deterministic for a seed.

    result = simulate(durations, fleet, policy, seed=1, days=54)      # failures drawn from the fleet's rates
    result = simulate(durations, fleet, policy, steps=2000, faults=[GivenFault(kind="hang", at_s=310.0)])
    result.goodput, result.buckets, result.interruptions              # what the ledger would say of it
    account(timeline_of(result, durations))                           # the ledger itself, of a short run
    expected_goodput(durations, fleet, policy)                        # closed form: a number, or why there is none
    best_intervals(durations, fleet, policy)                          # steps between two saves of each tier

"result" is a Simulation. Bad input raises ConfigError with every problem.
"""

from holdfast.goodput.simulate.bands import Band, band
from holdfast.goodput.simulate.draws import GivenFault
from holdfast.goodput.simulate.engine import simulate
from holdfast.goodput.simulate.expand import timeline_of
from holdfast.goodput.simulate.expected import best_intervals, expected_goodput, levels_of
from holdfast.goodput.simulate.result import Interruption, JobSpan, Simulation
from holdfast.goodput.simulate.settings import GROW, LAYERS, PERSON, Cure, Durations, Fleet, Policy, Tier

__all__ = [
    "GROW",
    "LAYERS",
    "PERSON",
    "Band",
    "Cure",
    "Durations",
    "Fleet",
    "GivenFault",
    "Interruption",
    "JobSpan",
    "Policy",
    "Simulation",
    "Tier",
    "band",
    "best_intervals",
    "expected_goodput",
    "levels_of",
    "simulate",
    "timeline_of",
]
