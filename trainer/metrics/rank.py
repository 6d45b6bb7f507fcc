"""What a rank tells of itself. It is taken from the events that the rank logs anyway, so that metrics and ledger cannot
disagree: no step is timed twice, nothing waits for the device, nothing talks to other ranks.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from typing import Any

from holdfast import metrics
from holdfast.config import RunConfig, names
from holdfast.config.flops import flops_per_token, peak_flops_per_s
from holdfast.goodput.events import EventLog
from holdfast.metrics import Metric
from holdfast.run_directory import RunDirectory
from trainer.metrics.families import family
from trainer.runtime import Identity

logger = logging.getLogger(__name__)

BLOCKED = ("stage", "checkpoint_wait", "drain")
"""Spans in which training stands still for a save, of either tier."""


class MeasuredLog(EventLog):
    """An event log that also tells one listener of every event, after it is written."""

    listener: RankMetrics | None = None

    def _write(self, record: dict[str, Any]) -> None:
        super()._write(record)
        if self.listener is not None:
            self.listener.saw(record)


def measure(log: MeasuredLog, config: RunConfig, identity: Identity, run: RunDirectory) -> None:
    """Serve this rank's metrics where the pod's manifest says, from now on. Nothing where it does not say."""
    places = [place for place in os.environ.get(names.ENV_METRICS, "").split(",") if place]
    if identity.local_rank < len(places):
        from trainer.metrics.serve import serve  # a server's imports, which nobody needs before

        log.listener = RankMetrics(config, identity, run)
        serve(places[identity.local_rank], log.listener)


class RankMetrics:
    """The numbers of one rank. `saw` is called by the training loop, `collect` by the server's thread; both touch plain
    numbers only, so neither waits for the other."""

    def __init__(self, config: RunConfig, identity: Identity, run: RunDirectory) -> None:
        self._config = config
        self._run = run
        self._rank = identity.rank
        self._tokens_per_step = config.training.global_batch_size * config.data.sequence_length / identity.world_size
        self._peak = peak_flops_per_s(config)
        self._flops_per_step = flops_per_token(config.model, config.data.sequence_length) * self._tokens_per_step
        saves = config.checkpoint.interval_steps if config.checkpoint.mode != "off" else 0
        self._values: dict[Metric, float] = {
            metrics.STEPS_PLANNED: config.training.steps,
            metrics.SAVE_INTERVAL: saves,
            metrics.STEP_TIME: time.time(),
            metrics.DATA_SECONDS: 0.0,
            metrics.TOKENS: 0.0,
            metrics.NONFINITE_LOSSES: 0,
            metrics.BLOCKED_SECONDS: 0.0,
            metrics.SAVE_FAILURES: 0,
            metrics.COMMITTED_STEP: 0,
            metrics.COMMIT_TIME: time.time(),
        }
        self._steps, self._step_seconds = 0, 0.0
        self._slow: dict[int, float] = {}
        """Slow rank -> seconds of a step; rank 0 compares (trainer/stragglers)."""
        self._restarts = {"in_process": 0, "in_job": identity.cycle, "generation": max(0, identity.generation - 1)}

    def saw(self, event: dict[str, Any]) -> None:
        """An event of this rank as it is written: `name`, monotonic start `t`, for a span `dur`, and its fields."""
        values, name, duration = self._values, event["name"], event.get("dur", 0.0)
        if name == "step" and "error" not in event:
            self._step(event, duration)
        elif name == "data":
            values[metrics.DATA_SECONDS] += duration
        elif name in BLOCKED:
            values[metrics.BLOCKED_SECONDS] += duration
        elif name == "commit":
            values[metrics.COMMITTED_STEP] = event["step"]
            values[metrics.COMMIT_TIME] = time.time() - (time.monotonic() - event["t"])
        elif name == "save_failed":
            values[metrics.SAVE_FAILURES] += 1
        elif name == "restore" and "error" not in event:
            self._restored(event["step"], event.get("tier"))
        elif name == "attempt_start":
            self._restarts["in_process"] = event["restart"]
            self._slow = {}
        elif name == "straggler":
            self._slow = {**self._slow, event["rank"]: event["own_s"] - event["median_s"]}
        elif name == "straggler_over":
            self._slow = {rank: seconds for rank, seconds in self._slow.items() if rank != event["rank"]}

    def _step(self, event: dict[str, Any], duration: float) -> None:
        values = self._values
        self._steps += 1
        self._step_seconds += duration
        values[metrics.STEP] = event["step"]
        values[metrics.STEP_TIME] = time.time()
        values[metrics.TOKENS] += self._tokens_per_step
        if isinstance(loss := event.get("loss"), int | float):
            values[metrics.LOSS] = loss
            values[metrics.NONFINITE_LOSSES] += not math.isfinite(loss)
        if self._peak is not None and duration > 0:
            values[metrics.MFU] = self._flops_per_step / duration / self._peak

    def _restored(self, step: int, tier: str | None) -> None:
        """Training goes on from here. When that was committed is the marker's own time, whoever committed it."""
        self._values[metrics.STEP] = step
        if self._rank != 0:
            return
        committed = _newest_committed(self._run, step) if tier == "local" else step
        if committed is None:
            return
        marker = self._run.checkpoints / names.step_folder(committed) / names.COMMITTED
        try:
            self._values[metrics.COMMIT_TIME] = marker.stat().st_mtime
        except OSError as error:
            logger.warning("the age of the newest commit is not known, and counts from now: %s", error)
        self._values[metrics.COMMITTED_STEP] = committed

    def collect(self) -> Iterator[Any]:
        """Every metric of this rank, for prometheus_client."""
        from trainer.optimizer import learning_rate

        labels = (self._config.name, str(self._rank))
        for metric in metrics.METRICS:
            if metric.by != "rank" or (metric in metrics.RANK_0_ONLY and self._rank != 0):
                continue
            if metric is metrics.RESTARTS:
                yield family(metric, {(*labels, layer): count for layer, count in self._restarts.items()})
            elif metric is metrics.STRAGGLER_SECONDS:
                yield family(metric, {(self._config.name, str(rank)): slow for rank, slow in self._slow.items()})
            elif metric is metrics.STEP_SECONDS:
                yield family(metric, {labels: (self._steps, self._step_seconds)})
            elif metric is metrics.LEARNING_RATE:
                step = self._values.get(metrics.STEP)
                yield family(metric, {} if step is None else {labels: learning_rate(self._config, max(1, int(step)))})
            else:
                value = self._values.get(metric)
                yield family(metric, {} if value is None else {labels: value})


def _newest_committed(run: RunDirectory, at_most: int) -> int | None:
    """The newest step on the shared storage that is not beyond a step of the local tier."""
    found = [names.step_of(marker.parent.name) for marker in run.checkpoints.glob(f"*/{names.COMMITTED}")]
    return max((step for step in found if step is not None and step <= at_most), default=None)
