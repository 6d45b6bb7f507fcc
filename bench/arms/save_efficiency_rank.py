"""`python -m bench.arms.save_efficiency_rank ORDER`: one rank of a short run that saves every so many steps, and
waits at its end until its last save is durable. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set. Rank 0 adds a
line when it is over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench import json_lines
from bench.arms.leaving import leave_after
from bench.arms.rank import arm_class
from bench.save_efficiency_spec import Order

LEAD_IN = 5
"""Steps that do not count: allocators find their way."""
POLL_S = 0.005


class DrainTooLong(Exception):
    """The last save was not durable in time."""


def main() -> None:
    """Do what the order says."""
    order, rank = Order.from_json(sys.argv[1]), int(os.environ["RANK"])
    from trainer.imports import import_training_stack

    import_training_stack("llama")
    from bench.arms.calibrate import _versions, batch_for
    from bench.arms.workload import Workload

    spec = order.spec
    work = Workload(spec, spec.micro_batch or 1)
    if not spec.micro_batch:
        samples, took = batch_for(work, order.step_s) if spec.cuda else (1, order.step_s)
        work.use_batch(samples)
        _report(order, rank, "calibration", micro_batch=samples, step_s=took, shard_bytes=work.shard_bytes())
    arm = way(spec.method, spec.arm)(work)
    arm.warm_up()
    found = run(work, arm, order)
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    parameters = sum(parameter.numel() for parameter in work.model.parameters())
    size = {"shard_bytes": work.shard_bytes(), "parameters": parameters}
    _report(order, rank, "arm", versions=_versions(), gpus=gpus, **size, **found)


def way(method: str, name: str) -> Any:
    """The arm of a row."""
    if method != "nvrx_torch":
        return arm_class(name)
    from bench.arms.nvrx_arms import NvrxTorch

    class AsTheArticle(NvrxTorch):
        """Nothing looks after a save before the next one waits for it."""

        def after_step(self) -> None:
            """Nothing."""

        def durable(self) -> bool:
            super().after_step()
            return super().durable()

    return AsTheArticle


def run(work: Any, arm: Any, order: Order) -> dict[str, Any]:
    """Seconds: of every step (from its begin to the next one's; a save belongs to the step before it), of every save
    call, from the end of the last step until all parts of the last save are durable, and of all. Collective."""
    for _ in range(LEAD_IN):
        work.step(arm.before_update, arm.between)
    work.barrier()
    work.finish_gpu()
    steps, calls = [], []
    begin = stamp = time.perf_counter()
    for step in range(1, order.steps + 1):
        work.step(arm.before_update, arm.between)
        if step % order.every == 0:
            called = time.perf_counter()
            arm.save(step // order.every - 1)
            calls.append(time.perf_counter() - called)
        else:
            arm.after_step()
        now = time.perf_counter()
        steps.append(now - stamp)
        stamp = now
    _drain(work, arm, order)
    end = time.perf_counter()
    probe = work.probe()  # nothing has changed it since the last save
    (right,) = work.everyone(arm.as_saved(order.saves - 1, probe))
    return {
        "steps_s": steps,
        "calls_s": calls,
        "drain_s": end - stamp,
        "wall_s": end - begin,
        "content_is_right": right,
    }


def _drain(work: Any, arm: Any, order: Order) -> None:
    arm.between()
    arm.before_update()
    deadline = time.perf_counter() + order.spec.limit_s
    while not work.everyone(arm.durable())[0]:
        if time.perf_counter() > deadline:
            raise DrainTooLong(f"the last save was not durable after {order.spec.limit_s} s")
        arm.after_step()
        time.sleep(POLL_S)


def _report(order: Order, rank: int, kind: str, **fields: Any) -> None:
    if rank == 0:
        spec = order.spec
        head = {"kind": kind, "method": spec.method, "run": spec.run, "at": time.time()}
        json_lines.append(Path(spec.raw), head | order.sizes | fields)


if __name__ == "__main__":
    leave_after(main)
