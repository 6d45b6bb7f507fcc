"""Every metric that Holdfast serves: name, type, labels, help. Trainer, dashboard, alerts and tests share this table.

Units and name endings are Prometheus' own: seconds, `_total` for what only grows, `_timestamp_seconds` for a moment.
The reader makes an age of it; one that is served would stand still with whoever serves it.

A process that starts again begins its counters at 0, which Prometheus knows as a reset. Numbers of restarts, the
committed step and its time are read from records instead and go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUN = "run"
"""Label: name of the run. Everything has it."""
RANK = "rank"
"""Label: global rank. Everything that ranks serve has it."""
LAYER = "layer"
BUCKET = "bucket"
MEASURE = "measure"
MEASURES = ("goodput", "goodput_total", "ettr")
"""Values of MEASURE: figures of the ledger, by its names."""
LAYERS = ("in_process", "in_job", "generation")
"""Values of LAYER: attempts in the same process, launcher cycles of the generation, generations of the run."""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric. A summary is served as `<name>_sum` and `<name>_count`. by: who serves it."""

    name: str
    kind: Literal["gauge", "counter", "summary"]
    by: Literal["rank", "control"]
    help: str
    labels: tuple[str, ...] = ()
    """Beside RUN, and RANK where ranks serve it."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Every label that it has, in the order in which it is served."""
        return (RUN, *((RANK,) if self.by == "rank" else ()), *self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """Names as Prometheus stores and queries them."""
        return (f"{self.name}_sum", f"{self.name}_count") if self.kind == "summary" else (self.name,)


STEP = Metric("holdfast_step", "gauge", "rank", "Last step that this rank has finished; it falls when work is lost.")
STEPS_PLANNED = Metric("holdfast_steps_planned", "gauge", "rank", "Steps after which the run is complete.")
STEP_SECONDS = Metric("holdfast_step_seconds", "summary", "rank", "Duration of finished steps, saves apart.")
STEP_TIME = Metric(
    "holdfast_last_step_timestamp_seconds",
    "gauge",
    "rank",
    "When this rank finished its last step; before the first one, when its process began.",
)
DATA_SECONDS = Metric("holdfast_data_seconds_total", "counter", "rank", "Time in which steps waited for data.")
TOKENS = Metric("holdfast_tokens_total", "counter", "rank", "Tokens that this rank has trained on, repeated ones too.")
MFU = Metric(
    "holdfast_mfu_ratio",
    "gauge",
    "rank",
    "Model FLOPs utilization in the last step, 0 to 1. Served where the peak of the GPU is known.",
)
LOSS = Metric("holdfast_loss", "gauge", "rank", "This rank's mean loss in the last step.")
NONFINITE_LOSSES = Metric(
    "holdfast_nonfinite_losses_total", "counter", "rank", "Steps whose loss was infinite or not a number."
)
LEARNING_RATE = Metric("holdfast_learning_rate", "gauge", "rank", "Learning rate of the last step.")
SAVE_INTERVAL = Metric("holdfast_save_interval_steps", "gauge", "rank", "Steps between saves; 0 if nothing is saved.")
BLOCKED_SECONDS = Metric(
    "holdfast_save_blocked_seconds_total",
    "counter",
    "rank",
    "Time in which training stood still for a save: its copy, and waits for the save before.",
)
SAVE_FAILURES = Metric("holdfast_save_failures_total", "counter", "rank", "Saves that failed as this rank saw them.")
COMMITTED_STEP = Metric("holdfast_committed_step", "gauge", "rank", "Newest committed step. Rank 0 only.")
COMMIT_TIME = Metric(
    "holdfast_last_commit_timestamp_seconds",
    "gauge",
    "rank",
    "When the newest commit was made; before the first one, when this process began. Rank 0 only.",
)
RESTARTS = Metric(
    "holdfast_restarts_total",
    "counter",
    "rank",
    "Restarts that led to this attempt, by layer. in_process counts in a process, in_job in a generation.",
    (LAYER,),
)
STRAGGLER_SECONDS = Metric(
    "holdfast_straggler_seconds",
    "gauge",
    "rank",
    "Time of every step in which others wait for this rank. Rank 0 tells it, of each rank that it has named as slow.",
)
WORLD_SIZE = Metric("holdfast_world_size", "gauge", "control", "Ranks of the present generation.")
GOODPUT = Metric(
    "holdfast_goodput_ratio",
    "gauge",
    "control",
    "Productive part of the run's time, 0 to 1: after the first finished step (goodput), from the first pod on "
    "(goodput_total), with the queue (ettr).",
    (MEASURE,),
)
WALL_SECONDS = Metric("holdfast_wall_seconds", "gauge", "control", "Wall time of the run that is accounted.")
BUCKET_SECONDS = Metric(
    "holdfast_bucket_seconds", "gauge", "control", "Wall time of the run by what it was spent on.", (BUCKET,)
)
GOODPUT_TIME = Metric(
    "holdfast_goodput_timestamp_seconds",
    "gauge",
    "control",
    "When the event logs were last accounted; before the first time, when the control pod began to.",
)
ACCOUNTING_FAILURES = Metric(
    "holdfast_accounting_failures_total", "counter", "control", "Accountings that failed, or hit a limit."
)

METRICS = (
    STEP, STEPS_PLANNED, STEP_SECONDS, STEP_TIME, DATA_SECONDS, TOKENS, MFU, LOSS, NONFINITE_LOSSES, LEARNING_RATE,
    SAVE_INTERVAL, BLOCKED_SECONDS, SAVE_FAILURES, COMMITTED_STEP, COMMIT_TIME, RESTARTS,
    STRAGGLER_SECONDS,
    WORLD_SIZE, GOODPUT, WALL_SECONDS, BUCKET_SECONDS, GOODPUT_TIME, ACCOUNTING_FAILURES,
)  # fmt: skip
"""Those of the ranks, then those of the control pod."""

RANK_0_ONLY = (COMMITTED_STEP, COMMIT_TIME)
