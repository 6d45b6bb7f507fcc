"""From published failure rates to the failures of one job."""

from __future__ import annotations

import math

from holdfast.config.failure_rates import FailureRate
from holdfast.goodput.model.estimate import Estimate, estimate

DAY_S = 86_400.0
SMALL_NODES = 128
"""Largest job at which a node rate was measured to be wrong: Meta's predicts 28.8 h between failures for 128 nodes,
and 7.9 h were measured; 153.8 days for one node, and 47.7 were measured (arXiv 2410.21680)."""


def job_failures_per_day(rate: FailureRate, nodes: int) -> Estimate:
    """Failures of a job on so many nodes of 8 GPUs: the nodes' own, which scale, and the software's, which do not."""
    if nodes < 1:
        raise ValueError(f"nodes is {nodes}: a job has at least one")
    per_day = rate.hardware_per_node_day * nodes + rate.software_per_job_day
    return estimate("failures of the job per day", per_day, hardware_alone(rate.software_per_job_day, per_day, nodes))


def mtbf_s(rate: FailureRate, nodes: int) -> Estimate:
    """The job's mean time between failures in seconds; math.inf for the preset `none`."""
    failures = job_failures_per_day(rate, nodes)
    what = "the job's time between failures (s)"
    if failures.number is None:
        return Estimate(what, None, failures.outside)
    return estimate(what, DAY_S / failures.number if failures.number else math.inf)


def hardware_alone(software_per_day: float, all_per_day: float, nodes: int) -> list[str]:
    """The reason against a number for a small job whose failures are taken from node hardware alone, if it is one."""
    if software_per_day > 0 or all_per_day == 0 or nodes > SMALL_NODES:
        return []
    return [
        f"the failure rate counts node hardware alone, and jobs of up to {SMALL_NODES} nodes fail far more often than "
        "that (measured: 3.2 times at 1 node, 3.6 times at 128); use a rate with a software part, such as rsc1-measured"
    ]
