"""The ledger: every second of a run belongs to exactly one bucket, and the buckets sum to the run's wall time.

Job time is accounted, not the time of single ranks: at each moment the job does what its ranks' spans say, and a rank
that waits for a slower peer does what the job does. So the numbers mean the same with 2 ranks and with 1000. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.goodput.attempts import Attempt, find_attempts, reigning, surviving_steps
from holdfast.goodput.failures import Recovery, find_failures, find_recoveries
from holdfast.goodput.job import Job
from holdfast.goodput.measures import Measures, measure
from holdfast.goodput.overlay import activities, lay_over, split_degraded
from holdfast.goodput.phases import Segment, find_phases, find_window
from holdfast.goodput.saves import Saves, find_saves
from holdfast.goodput.taxonomy import BUCKETS as BUCKETS
from holdfast.goodput.taxonomy import GOOGLE_NAMES
from holdfast.goodput.timeline import Anomaly, Timeline

SCHEMA = 1
MOST_UNATTRIBUTED = 0.01
"""Share of the wall time beyond which a ledger says why it does not know more."""


@dataclass(frozen=True)
class Ledger:
    """A run's wall time, accounted. Times are job seconds; origin is the wall-clock time of second 0."""

    origin: float
    start: float
    wall_s: float
    ranks: int
    """At full size: as configured, where that is known. Each attempt has its own world size."""
    steps: int
    """Distinct steps in the final state."""
    buckets: Mapping[str, float]
    """Seconds of job wall time (rank-seconds / ranks); they sum to wall_s."""
    segments: tuple[Segment, ...]
    attempts: tuple[Attempt, ...]
    recoveries: tuple[Recovery, ...]
    saves: Saves
    anomalies: tuple[Anomaly, ...]
    job: Job | None = None

    @cached_property
    def measures(self) -> Measures:
        """The run as others measure theirs."""
        return measure(self.segments, self.buckets, reigning(self.attempts), self.steps, self.job)

    @property
    def runtime_s(self) -> float:
        """Wall time without queue."""
        return self.wall_s - self.buckets["queue"]

    @property
    def goodput(self) -> float:
        """Productive part of the time after the first finished step, queue left out, 0 to 1. 0 for an empty log."""
        return self.measures.goodput

    @property
    def goodput_total(self) -> float:
        """Productive part of the whole run, start-up included, queue left out, 0 to 1. 0 for an empty log."""
        return self.measures.goodput_total

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "wall_s": self.wall_s,
            "runtime_s": self.runtime_s,
            "ranks": self.ranks,
            "steps": self.steps,
            **self.measures.summary(),
            "buckets": dict(self.buckets),
            "google_names": dict(GOOGLE_NAMES),
            "attempts": [attempt_summary(attempt, self.start) for attempt in self.attempts],
            "recoveries": [recovery_summary(recovery, self.start) for recovery in self.recoveries],
            "checkpoints": self.saves.summary(),
            "anomalies": [{"kind": a.kind, "where": a.where, "text": a.text} for a in self.anomalies],
        }


def attempt_summary(attempt: Attempt, start: float) -> dict[str, object]:
    """Plain data of one attempt; `begin_s` counts from the start of the run."""
    return {
        "attempt": str(attempt),
        "begin_s": attempt.begin - start,
        "ranks": attempt.world_size,
        "steps": len(attempt.extents.steps),
        "complete": attempt.complete,
    }


def recovery_summary(recovery: Recovery, start: float) -> dict[str, object]:
    """Plain data of one recovery; `at_s` counts from the start of the run."""
    fault = recovery.fault
    return {
        "id": fault.id,
        "kind": fault.kind,
        "rank": fault.rank,
        "step": fault.step,
        "at_s": fault.at - start,
        "layer": recovery.layer,
        "detected_s": recovery.detected_s,
        "recovered_s": recovery.recovered_s,
        "lost_steps": recovery.lost_steps,
        "breakdown": dict(recovery.breakdown),
    }


def account(timeline: Timeline) -> Ledger:
    """The ledger of a timeline; of an empty one, zeros."""
    window = find_window(timeline)
    attempts, anomalies = find_attempts(timeline, window.end)
    survivors = surviving_steps(attempts)
    active = reigning(attempts)
    failures = find_failures(timeline, active, window.started_again, window.end)
    ranks = _full_size(timeline)
    laid = lay_over(find_phases(timeline, window, active, failures), activities(active, survivors, failures))
    segments = split_degraded(laid, active, ranks)
    wall_s = window.end - window.start
    return Ledger(
        origin=timeline.origin,
        start=window.start,
        wall_s=wall_s,
        ranks=ranks,
        steps=len(survivors),
        buckets=_sums(segments),
        segments=tuple(segments),
        attempts=attempts,
        recoveries=find_recoveries(timeline, active, failures),
        saves=find_saves(timeline, attempts),
        anomalies=(*timeline.anomalies, *anomalies, *_unattributed(segments, active, wall_s)),
        job=timeline.job,
    )


def _full_size(timeline: Timeline) -> int:
    """Ranks of the job at full size; without a run.yaml, those of its largest attempt."""
    configured = timeline.job.ranks if timeline.job else 0
    seen = {process.rank for process in timeline.processes if process.rank is not None}
    largest = max((process.world_size for process in timeline.processes), default=0)
    return configured or largest or len(seen)


def _sums(segments: Sequence[Segment]) -> dict[str, float]:
    parts: dict[str, list[float]] = {bucket: [] for bucket in BUCKETS}
    for segment in segments:
        parts[segment.bucket].append(segment.end - segment.start)
    return {bucket: math.fsum(seconds) for bucket, seconds in parts.items()}


def _unattributed(segments: Sequence[Segment], attempts: Sequence[Attempt], wall_s: float) -> list[Anomaly]:
    """Why so much time is unattributed, if it is."""
    unknown = [segment for segment in segments if segment.bucket == "unattributed"]
    total = math.fsum(segment.end - segment.start for segment in unknown)
    if total <= MOST_UNATTRIBUTED * wall_s:
        return []
    last = max((attempt.last_step_end for attempt in attempts if attempt.last_step_end is not None), default=0.0)
    after = math.fsum(segment.end - max(segment.start, last) for segment in unknown if segment.end > last)
    reasons = [
        (total - after, "between steps, where no span says what the ranks did"),
        (after, "after the last finished step: the run goes on, or was killed with all that could have noticed"),
    ]
    why = "; ".join(f"{seconds:.1f} s {reason}" for seconds, reason in reasons if seconds > 0.05)
    return [Anomaly("unattributed", "job", f"{total / wall_s:.1%} of the time is unattributed: {why}")]
