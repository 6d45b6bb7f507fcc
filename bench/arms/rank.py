"""`python -m bench.arms.rank SPEC`: one rank of one arm. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.

Rank 0 appends what was measured to the raw file, line by line, so that a killed process loses only what comes after.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from bench.arms.leaving import leave_after
from bench.checkpoint_spec import CALIBRATE, METHODS, PROFILE, WRITE, Spec


class Reporter:
    """Appends JSON lines to the raw file; silent on all ranks but the first."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self._spec = spec
        self._is_mine = rank == 0

    def __call__(self, kind: str, **fields: Any) -> None:
        if self._is_mine:
            line = {"kind": kind, "method": self._spec.method, "run": self._spec.run, "at": time.time(), **fields}
            with open(self._spec.raw, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    """Do what the spec says."""
    spec = Spec.from_json(sys.argv[1])
    report = Reporter(spec, int(os.environ["RANK"]))
    if spec.arm == WRITE:
        from bench.arms.write_bandwidth import compare

        report("write", **compare(spec))
        return
    from trainer.imports import import_training_stack

    import_training_stack("llama")
    from bench.arms.workload import Workload

    if spec.arm == CALIBRATE:
        from bench.arms.calibrate import calibrate

        report("calibration", **calibrate(Workload(spec, 1)))
        return
    if spec.arm == PROFILE:
        from bench.arms.holdfast_arm import Holdfast
        from bench.arms.profile import profile

        work = Workload(spec, spec.micro_batch)
        arm = Holdfast(work)
        arm.warm_up()
        report("profile", **profile(work, arm))
        return
    _measure(spec, report)


def _measure(spec: Spec, report: Reporter) -> None:
    import torch.distributed as dist

    from bench.arms.measure import measure
    from bench.arms.memory import tree_bytes
    from bench.arms.workload import Workload

    work = Workload(spec, spec.micro_batch)
    for _ in range(3):
        work.step()
    work.barrier()
    before = tree_bytes()
    report("ready")
    arm = arm_class(spec.arm)(work)
    arm.warm_up()
    found = measure(work, arm, report, extra_first=not METHODS[spec.method].first_counts)
    grown: list[Any] = [None] * work.world
    dist.all_gather_object(grown, tree_bytes() - before, group=work.group)
    report("arm", tree_bytes=grown, micro_batch=spec.micro_batch, **found)
    work.barrier()


def arm_class(name: str) -> Any:
    """The class of an arm; imports only what that arm needs."""
    if name == "holdfast":
        from bench.arms.holdfast_arm import Holdfast

        return Holdfast
    if name.startswith("nvrx"):
        from bench.arms import nvrx_arms

        return nvrx_arms.ARMS[name]
    from bench.arms import torch_arms

    return torch_arms.ARMS[name]


if __name__ == "__main__":
    leave_after(main)
