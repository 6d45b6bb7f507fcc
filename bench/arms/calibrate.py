"""Sizes and speeds that all arms share: bytes of a shard, copy bandwidth to the host, and the batch that makes a step
so long as the bench wants it."""

from __future__ import annotations

import math
import platform
import statistics
import time
from importlib.metadata import version
from typing import Any

import torch

from bench.arms.workload import Workload
from bench.checkpoint_spec import SHORT_OVER_COPY, STEP_OVER_COPY, TIGHT_OVER_COPY

COPIED = 1 << 30
COPIES = 8
TIMED_STEPS = 6
_PACKAGES = ("torch", "nvidia-resiliency-ext", "transformers", "numpy")


def calibrate(work: Workload) -> dict[str, Any]:
    """What the calibration line says. Collective."""
    bandwidth = _slowest(work, copy_bandwidth(work))
    bytes_ = max(_gather(work, work.shard_bytes()))
    copy_s = bytes_ / bandwidth
    long, long_s = batch_for(work, STEP_OVER_COPY * copy_s) if work.spec.cuda else (1, step_seconds(work, 1))
    tight, tight_s = batch_for(work, TIGHT_OVER_COPY * copy_s) if work.spec.cuda else (1, long_s)
    short, short_s = batch_for(work, SHORT_OVER_COPY * copy_s, at_least=False) if work.spec.cuda else (1, long_s)
    return {
        "copy_gb_s": bandwidth / 1e9,
        "shard_bytes": bytes_,
        "copy_s": copy_s,
        "micro_batch": long,
        "step_s": long_s,
        "tight_micro_batch": tight,
        "tight_step_s": tight_s,
        "short_micro_batch": short,
        "short_step_s": short_s,
        "parameters": sum(parameter.numel() for parameter in work.model.parameters()),
        "versions": _versions(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def copy_bandwidth(work: Workload) -> float:
    """Bytes per second of copies to pinned memory while all ranks copy; of plain copies on a CPU."""
    size = COPIED if work.spec.cuda else COPIED // 64
    source = torch.ones(size, dtype=torch.uint8, device=work.device)
    target = torch.ones(size, dtype=torch.uint8, pin_memory=work.spec.cuda)
    times = []
    for _ in range(COPIES):
        work.barrier()
        work.finish_gpu()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        work.finish_gpu()
        times.append(time.perf_counter() - start)
    return size / statistics.median(times)


def batch_for(work: Workload, seconds: float, at_least: bool = True) -> tuple[int, float]:
    """Samples per rank that make a step just longer (or not longer) than `seconds`, and the step's length. The same on
    all ranks."""
    samples, took = 8, step_seconds(work, 8)
    for _ in range(4):
        wanted = samples * seconds / took
        better = max(1, math.ceil(wanted) if at_least else math.floor(wanted))
        if better == samples:
            break
        samples, took = better, step_seconds(work, better)
        if at_least and seconds <= took < 1.15 * seconds:
            break
    return samples, took


def step_seconds(work: Workload, samples: int) -> float:
    """Median length of a step, the slowest rank's."""
    work.use_batch(samples)
    for _ in range(3):
        work.step()
    times = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        work.step()
        times.append(time.perf_counter() - start)
    return float(max(_gather(work, statistics.median(times))))


def _slowest(work: Workload, rate: float) -> float:
    return float(min(_gather(work, rate)))


def _gather(work: Workload, value: Any) -> list[Any]:
    values: list[Any] = [None] * work.world
    torch.distributed.all_gather_object(values, value, group=work.group)
    return values


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    if torch.version.cuda:
        found |= {"cuda": torch.version.cuda, "nccl": ".".join(str(part) for part in torch.cuda.nccl.version())}
    return found
