"""`python -m bench.arms.throughput_rank SPEC`: one rank of one trial. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
set. Rank 0 appends what was measured to the raw file, line by line, so that a killed process loses only what comes
after."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench import json_lines
from bench.arms.leaving import leave_after
from bench.arms.throughput_arm import Arm
from bench.arms.throughput_clock import Clock
from bench.throughput_spec import EAGER, HOLDFAST, Spec

_PACKAGES = ("torch", "triton", "transformers", "torchtitan", "numpy")
GIB = 2.0**30


def main() -> None:
    """Warm up, time steps, and trace some."""
    spec = Spec.from_json(sys.argv[1])
    rank = int(os.environ["RANK"])
    started = time.monotonic()
    if spec.cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with arm_class(spec.trial.arm)(spec, rank) as arm:
        built_s = time.monotonic() - started
        losses = [_finished(arm, spec) for _ in range(spec.sizes.warmup)]
        warm_s = time.monotonic() - started - built_s
        _say(spec, rank, f"built in {built_s:.0f} s, {spec.sizes.warmup} steps in {warm_s:.0f} s, loss {losses[0]:.3f}")
        if spec.timed:
            fields = {"built_s": built_s, "warm_s": warm_s, "first_loss": losses[0], **_timed(arm, spec)}
            _report(spec, rank, "steps", **fields, **_surroundings())
        if spec.trace_steps:
            from bench.arms.throughput_trace import trace

            where = trace(arm, spec)
            if where is not None:
                _report(spec, rank, "trace", **where)


def arm_class(name: str) -> type[Arm]:
    """The class of an arm; imports only what that arm needs."""
    if name == HOLDFAST:
        from bench.arms.throughput_holdfast import Holdfast

        return Holdfast
    if name == EAGER:
        from bench.arms.throughput_eager import Eager

        return Eager
    from bench.arms.throughput_titan import Titan

    return Titan


def _finished(arm: Arm, spec: Spec) -> float:
    """A step to its very end; its loss."""
    loss = float(arm.step())
    if spec.cuda:
        torch.cuda.synchronize()
    return loss


def _timed(arm: Arm, spec: Spec) -> dict[str, Any]:
    """Seconds of each step, of the slowest rank; memory of the fullest. Between two steps the host waits for nothing
    that the arm itself does not wait for."""
    if spec.cuda:
        torch.cuda.reset_peak_memory_stats()
    retries = _retries(spec)
    dist.barrier()
    clock = Clock(spec.cuda)
    clock.stamp()
    loss: Any = None
    for _ in range(spec.sizes.steps):
        loss = arm.step()
        clock.stamp()
    each = clock.seconds()
    slowest = [max(ranks) for ranks in zip(*_gathered(each), strict=True)]
    memory = [max(ranks) for ranks in zip(*_gathered(_peak_gib(spec)), strict=True)]
    return {
        "each_s": slowest,
        "median_s": statistics.median(slowest),
        "last_loss": float(loss),
        "peak_gib": memory[0],
        "peak_reserved_gib": memory[1],
        "alloc_retries": max(_gathered(_retries(spec) - retries)),
        "graphs": _graphs(),
        "settings": arm.settings(),
    }


def _peak_gib(spec: Spec) -> list[float]:
    if not spec.cuda:
        return [0.0, 0.0]
    return [torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB]


def _retries(spec: Spec) -> int:
    """How often the allocator had to give memory back to the GPU, and to wait for it, before it found room."""
    return int(torch.cuda.memory_stats()["num_alloc_retries"]) if spec.cuda else 0


def _graphs() -> int:
    """Different graphs that were compiled. A block that compiles anew for each layer runs eagerly after a few."""
    counters: Any = torch._dynamo.utils.counters
    return int(counters["stats"]["unique_graphs"])


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _surroundings() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    if torch.cuda.is_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"versions": versions, "gpus": gpus}


def _report(spec: Spec, rank: int, kind: str, **fields: Any) -> None:
    if rank == 0:
        head = {"kind": kind, "trial": spec.trial.name, "run": spec.run, "at": time.time()}
        json_lines.append(Path(spec.raw), head | spec.sizes.of(spec.trial.model) | fields)


def _say(spec: Spec, rank: int, text: str) -> None:
    """For the driver's output, which copies what the ranks say."""
    if rank == 0:
        print(f"{spec.trial.name}: {text}", flush=True)


if __name__ == "__main__":
    leave_after(main)
