"""Where a step beside a save's copy loses time on the device: the same steps with and without a save, kernel by kernel.

A save that costs more than it should does so in one of three ways: kernels run longer (they share memory and power with
the copy), the device idles between them (it waits for the host, or for events whose signals queue behind the copy on
the bus), or the update waits for the copy. Traces of torch's profiler tell them apart.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import torch

from bench.arms.arm import Arm
from bench.arms.measure import Loop
from bench.arms.workload import Workload

ROUNDS = 4
KINDS = {"gemm": ("gemm", "cutlass", "nvjet", "cublas"), "attention": ("flash", "fmha", "attention"), "nccl": ("nccl",)}
"""Words in the names of kernels, by what they do; all others are memory-bound."""


def profile(work: Workload, arm: Arm) -> dict[str, Any]:
    """Medians over rounds: {quiet, save} -> seconds of the step, of kernels by kind, of copies to the host, and idle on
    the stream of the model. Collective."""
    loop = Loop(work, arm)
    for _ in range(8):
        loop.interval()
    loop.save(0)
    seen: dict[str, list[dict[str, float]]] = {"quiet": [], "save": []}
    for index in range(1, ROUNDS + 1):
        loop.block()
        seen["quiet"].append(_traced(work, arm, None))
        loop.block()
        seen["save"].append(_traced(work, arm, index))
        while not loop.interval().done:
            pass
    return {how: _medians(rounds) for how, rounds in seen.items()}


def _traced(work: Workload, arm: Arm, save: int | None) -> dict[str, float]:
    work.finish_gpu()
    work.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        if save is not None:
            arm.save(save)
        gradients_s, _ = work.step(arm.before_update, arm.between)
        work.finish_gpu()
    return _sums(trace) | {"gradients_s": gradients_s}


def _sums(trace: Any) -> dict[str, float]:
    """Of one trace. The stream of the model is the one with most kernel time that is not NCCL's."""
    by_kind: dict[str, float] = defaultdict(float)
    on_stream: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in trace.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.duration_ns() <= 0:
            continue
        kind = _kind(event.name())
        by_kind[kind] += event.duration_ns() / 1e9
        if kind not in ("nccl", "copy_to_host"):
            on_stream[event.device_resource_id()].append((event.start_ns(), event.duration_ns()))
    model = max(on_stream.values(), key=lambda spans: sum(took for _, took in spans))
    first, last = min(start for start, _ in model), max(start + took for start, took in model)
    busy = sum(took for _, took in model)
    return {**by_kind, "span_s": (last - first) / 1e9, "idle_s": (last - first - busy) / 1e9}


def _kind(name: str) -> str:
    lower = name.lower()
    if "memcpy dtoh" in lower:
        return "copy_to_host"
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), "memory_bound")


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    keys = sorted({key for one in rounds for key in one})
    return {key: statistics.median(one.get(key, 0.0) for one in rounds) for key in keys}
