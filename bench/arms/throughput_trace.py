"""Where the milliseconds of a step go: every instant of some traced steps belongs to exactly one kind of work.

Kernels run beside one another (communication and copies beside arithmetic). What counts is what a step would be shorter
without: an instant belongs to the first kind of KINDS that is at work then, and to `idle` if nothing is. So the shares
of a step add up to it, and `nccl` is only what no arithmetic hides; `nccl_in_all` is all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from bench.arms.throughput_arm import Arm
from bench.throughput_spec import Spec

NCCL, COPY, IDLE, REST = "nccl", "copies", "idle", "norms_and_elementwise"
_WORDS = (
    (NCCL, ("nccl",)),
    (COPY, ("memcpy", "memset", "split_with_sizes", "chunk_cat", "copyfunctor", "copy_out")),
    ("optimizer", ("adam", "multi_tensor", "foreach", "lpnorm", "lp_norm")),
    ("attention_backward", ("flash_bwd", "fmha_bwd", "bprop", "attention_backward", "dgrad_dot_do")),
    ("attention_forward", ("flash", "fmha", "attention", "fprop_sdpa", "sdpa")),
    ("loss", ("softmax", "nll_loss", "cross_entropy", "logsumexp")),
    ("gemm", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "splitk")),
)
"""Words in the names of kernels, looked for in this order."""
_RANGES = ("FSDP::", "ProfilerStep", "nccl:", "##", "Torch-Compiled", "Optimizer.", "Pregraph", "TorchDynamo", "[mem")
"""How names begin that are no kernels, but stretches of time which somebody has named."""
KINDS = ("gemm", "attention_forward", "attention_backward", "loss", "optimizer", REST, COPY, NCCL)
"""In the order in which an instant is given away where several are at work."""
Interval = tuple[int, int, str]
"""Start and end in ns, and the kind."""
MOST_NAMES = 6
"""Kernels that are named for each kind, those that take most."""


def trace(arm: Arm, spec: Spec) -> dict[str, Any] | None:
    """Milliseconds per step by kind, of rank 0; None on the others. Collective."""
    dist.barrier()
    activities = [torch.profiler.ProfilerActivity.CUDA if spec.cuda else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(spec.trace_steps):
            arm.step()
        if spec.cuda:
            torch.cuda.synchronize()
    dist.barrier()
    if arm.rank != 0:
        return None
    wanted = torch.autograd.DeviceType.CUDA if spec.cuda else torch.autograd.DeviceType.CPU
    events = [
        (event.name(), event.start_ns(), event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == wanted and event.duration_ns() > 0
    ]
    return summary(events, spec.trace_steps)


def summary(events: Iterable[tuple[str, int, int]], steps: int) -> dict[str, Any]:
    """events: name, start and duration in ns. Milliseconds are those of one step."""
    kept = [event for event in events if not event[0].startswith(_RANGES)]
    intervals = [(start, start + took, kind(name)) for name, start, took in kept]
    shares = partition(intervals)
    per_step = 1e6 * steps
    names: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, _, took in kept:
        names[kind(name)][name] += took
    return {
        "steps": steps,
        "ms": {name: shares.get(name, 0) / per_step for name in (*KINDS, IDLE)},
        "step_ms": sum(shares.values()) / per_step,
        "nccl_in_all_ms": sum(took for name, _, took in kept if kind(name) == NCCL) / per_step,
        "kernels": {
            one: {name[:90]: took / per_step for name, took in _most(found)} for one, found in sorted(names.items())
        },
    }


def _most(found: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(found.items(), key=lambda pair: -pair[1])[:MOST_NAMES]


def kind(name: str) -> str:
    """What a kernel does, by its name."""
    lower = name.lower()
    return next((kind for kind, words in _WORDS if any(word in lower for word in words)), REST)


def partition(intervals: Iterable[Interval]) -> dict[str, int]:
    """ns by kind, between the first start and the last end; together exactly that long."""
    edges: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for start, end, what in intervals:
        edges[start].append((what, 1))
        edges[end].append((what, -1))
    at_work: dict[str, int] = defaultdict(int)
    shares: dict[str, int] = defaultdict(int)
    before: int | None = None
    for now in sorted(edges):
        if before is not None:
            shares[next((one for one in KINDS if at_work[one]), IDLE)] += now - before
        for what, change in edges[now]:
            at_work[what] += change
        before = now
    return dict(shares)
