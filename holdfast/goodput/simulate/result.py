"""What a simulation says: job-level spans, and the ledger's buckets made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.simulate.pace import Pace

TRAIN = "train"


@dataclass(frozen=True, slots=True)
class JobSpan:
    """A stretch of wall time (seconds from the start of the run) in which the job did one thing.

    what: TRAIN, or one of the ledger's buckets. Spans follow one another without a hole.
    """

    start: float
    end: float
    what: str
    attempt: tuple[int, int, int]
    """(generation, cycle, restart), as in the event log. The attempt that is being started, during a restart."""
    first: int = 0
    """TRAIN: steps that were behind it at its start. restore: the step whose state is loaded."""
    steps: int = 0
    """TRAIN: steps that it finished."""
    pace: Pace | None = field(default=None, compare=False)
    """TRAIN: how fast it was."""
    struck: bool = False
    """TRAIN: a fault ended it, so the step under way is lost."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """A fault and how it was overcome. Seconds count from the fault; None: not within the simulated time."""

    at_s: float
    kind: str
    node: int
    layer: str
    """Layer that was to cure it; another fault may have struck before it could."""
    detected_s: float | None
    recovered_s: float | None
    """Until training went on. Of faults that struck during a recovery: until the last of them was overcome."""
    lost_steps: int
    """Finished steps that were rolled back; of faults in one recovery, counted at the first."""
    tier: str | None
    """Tier that was restored; None: the run began anew at step 0, or was not restored within the simulated time."""


@dataclass(frozen=True)
class Simulation:
    """A simulated run. Its buckets are the ledger's, in seconds, and sum to wall_s."""

    wall_s: float
    complete: bool
    """Whether it came to its last step, where one was given."""
    nodes: int
    spans: tuple[JobSpan, ...]
    interruptions: tuple[Interruption, ...]

    @cached_property
    def buckets(self) -> Mapping[str, float]:
        """Seconds of wall time by bucket; all of the ledger's names are there."""
        return job_buckets(self.spans)

    @property
    def goodput(self) -> float:
        """Productive part of the wall time, 0 to 1."""
        return self.buckets["productive"] / self.wall_s if self.wall_s else 0.0

    @property
    def steps(self) -> int:
        """Steps of the final state."""
        return sum(kept for _, kept in surviving(self.spans))


def surviving(spans: Sequence[JobSpan]) -> list[tuple[JobSpan, int]]:
    """Every TRAIN span with the number of its steps that no later span began before: those count, all others are lost.

    The ledger's rule (attempts.surviving_steps) at the level of the job: work is lost when training goes on from an
    older step; work after the last commit of a run that ended counts.
    """
    found: list[tuple[JobSpan, int]] = []
    reached: int | None = None
    for span in reversed([span for span in spans if span.what == TRAIN]):
        kept = span.steps if reached is None else max(0, min(span.steps, reached - span.first))
        found.append((span, kept))
        reached = span.first if reached is None else min(reached, span.first)
    return found[::-1]


def job_buckets(spans: Sequence[JobSpan]) -> dict[str, float]:
    """The ledger's buckets of job-level spans. A rolled-back step is lost whole, with its waits, as in the ledger."""
    parts: dict[str, list[float]] = {bucket: [] for bucket in BUCKETS}
    for span in spans:
        if span.what != TRAIN:
            parts[span.what].append(span.end - span.start)
    for span, kept in surviving(spans):
        _train(span, kept, parts)
    return {bucket: math.fsum(seconds) for bucket, seconds in parts.items()}


def _train(span: JobSpan, kept: int, parts: Mapping[str, list[float]]) -> None:
    if span.pace is None:
        raise ValueError("a span of training has a pace")
    lasted = span.end - span.start
    whole = min(lasted, span.pace.time_of(span.first, span.steps))
    good = min(whole, span.pace.time_of(span.first, kept))
    of = span.pace.parts(span.first, kept)
    known = {
        "checkpoint_blocked": of.blocked_s,
        "checkpoint_hidden": of.hidden_s,
        "checkpoint_wait": of.wait_s,
        "data_stall": of.stall_s,
        "degraded": of.degraded_s,
    }
    for bucket, seconds in known.items():
        parts[bucket].append(seconds)
    parts["productive"].append(good - math.fsum(known.values()))
    # The step under way when a fault struck leaves no event; one that the end of the log cut off is not known.
    parts["lost_work"].append(whole - good + (lasted - whole if span.struck else 0.0))
    parts["unattributed"].append(0.0 if span.struck else lasted - whole)
