"""Small jobs for tests of the simulation, with round numbers."""

from __future__ import annotations

from typing import Any

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.model.saves import Save
from holdfast.goodput.simulate import GROW, Cure, Durations, Fleet, GivenFault, Policy, Simulation, Tier, simulate

SHARED = Tier(name="shared", save=Save(blocked_s=2, background_s=25), restore_s=8)
LOCAL = Tier(name="local", save=Save(blocked_s=1, background_s=3), restore_s=3, recoverable={"node_loss": 0.0})
CURES = {
    ("exception", IN_PROCESS): Cure(detection_s=1, restart_s=4),
    ("exception", IN_JOB): Cure(detection_s=1, restart_s=20),
    ("hang", IN_JOB): Cure(detection_s=60, restart_s=20),
    ("node_loss", IN_JOB): Cure(detection_s=5, restart_s=30),
    ("node_loss", NODE): Cure(detection_s=5, restart_s=100),
    ("planned", IN_JOB): Cure(detection_s=0, restart_s=20),
    (GROW, IN_JOB): Cure(detection_s=0, restart_s=15),
}
FOUR = Fleet(nodes=4, repair_s=1000, repair_varies=False)


def durations(**changes: Any) -> Durations:
    """Steps of 10 s, saves to the shared tier alone; init 50 s, queue 7 s, shutdown 3 s."""
    usual: dict[str, Any] = {
        "step_s": 10.0, "queue_s": 7.0, "init_s": 50.0, "shutdown_s": 3.0, "tiers": (SHARED,), "cures": CURES,
    }  # fmt: skip
    return Durations(**(usual | changes))


def run(*faults: GivenFault, fleet: Fleet = FOUR, steps: int = 100, interval: int = 10, **changes: Any) -> Simulation:
    """A run with these faults and no others."""
    times = durations(**{key: value for key, value in changes.items() if key not in ("policy",)})
    policy = changes.get("policy", Policy(intervals={"shared": interval}))
    return simulate(times, fleet, policy, steps=steps, faults=faults)


def nonzero(result: Simulation) -> dict[str, float]:
    """The buckets with something in them; all together are the wall time."""
    assert list(result.buckets) == list(BUCKETS)
    assert abs(sum(result.buckets.values()) - result.wall_s) < 1e-9
    return {bucket: round(seconds, 9) for bucket, seconds in result.buckets.items() if abs(seconds) > 1e-9}
