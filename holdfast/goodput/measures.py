"""One run, measured as others measure: each figure with its name, so that only like is compared with like.

All are fractions of time, 0 to 1. None: not applicable, or nothing to divide by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from holdfast.goodput.attempts import Attempt
from holdfast.goodput.job import Job
from holdfast.goodput.phases import Segment

_DOWN = ("detection", "restart_in_process", "restart_in_job", "node_replacement", "restore")


@dataclass(frozen=True)
class Measures:
    """The figures; MEANINGS says what each is."""

    goodput: float
    goodput_total: float
    ettr: float
    mfu: float | None
    mfu_total: float | None
    article_training_goodput: float
    article_infra_goodput: float

    def summary(self) -> dict[str, float | None]:
        """Plain data for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


MEANINGS: Mapping[str, str] = {
    "goodput": "productive share of the time after the first finished step, without queue",
    "goodput_total": "the same from the first pod on, start-up included (runtime goodput)",
    "ettr": "productive share of wall time, queue included",
    "mfu": "operations of surviving steps / what the GPUs can do in productive time",
    "mfu_total": "the same over the whole run without queue, of the GPUs configured",
    "article_training_goodput": "the article's: steps x mean step time / T; blind to what slows steps down",
    "article_infra_goodput": "the article's: (T - downtime) / T; blind to lost work, start-up, stalls",
}
"""What each figure is, in one line of a report. T is the run without queue; downtime is detection, restarts and
restores."""


def measure(
    segments: Sequence[Segment],
    buckets: Mapping[str, float],
    attempts: Sequence[Attempt],
    steps: int,
    job: Job | None,
) -> Measures:
    """segments, buckets: the ledger's. attempts: the reigning ones. steps: distinct steps in the final state."""
    wall = sum(buckets.values())
    runtime = wall - buckets["queue"]
    productive = buckets["productive"]
    first = min((attempt.first_finished[1] for attempt in attempts if len(attempt.finished)), default=np.inf)
    after = _after(segments, first)
    down = sum(buckets[bucket] for bucket in _DOWN)
    return Measures(
        goodput=_share(after.get("productive", 0.0), sum(after.values()) - after.get("queue", 0.0)),
        goodput_total=_share(productive, runtime),
        ettr=_share(productive, wall),
        mfu=_mfu(job, steps, productive),
        mfu_total=_mfu(job, steps, runtime),
        article_training_goodput=_share(steps * _mean_step(attempts), runtime),
        article_infra_goodput=_share(runtime - down, runtime),
    )


def _share(part: float, whole: float) -> float:
    # Rounding may leave a hair more than the whole.
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _after(segments: Sequence[Segment], time: float) -> dict[str, float]:
    """Seconds of each bucket after a time."""
    found: dict[str, float] = {}
    for segment in segments:
        if segment.end > time:
            found[segment.bucket] = found.get(segment.bucket, 0.0) + segment.end - max(segment.start, time)
    return found


def _mean_step(attempts: Sequence[Attempt]) -> float:
    """Mean seconds of all finished executions of steps, those that were lost included."""
    lengths = [attempt.extents.end - attempt.extents.start for attempt in attempts]
    every = np.concatenate(lengths) if lengths else np.empty(0)
    return float(every.mean()) if len(every) else 0.0


def _mfu(job: Job | None, steps: int, seconds: float) -> float | None:
    """Of the ranks at full size: productive time counts a smaller job as the share of it that it is."""
    if job is None or job.peak_flops_per_s is None or seconds <= 0:
        return None
    return steps * job.flops_per_step / (seconds * job.ranks * job.peak_flops_per_s)
