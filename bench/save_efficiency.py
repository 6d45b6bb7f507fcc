"""`python -m bench.save_efficiency`: the article's checkpoint experiment: how much of a run with saves is training.

Each arm trains 300 steps of about 0.25 s with a save after every 100th, fsynced, and then waits until the last save is
durable. The state per GPU is what one of the article's 16 GPUs holds of Llama-3.1-8B with float32 moments. Each arm is
a process group of its own and adds its line to the raw file at its end; what is there is not run again. On two GPUs:

    python -m bench.save_efficiency --raw RAW.jsonl --hardware h200x2 --deadline 570
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import json_lines, record
from bench.checkpoint import CPU_SIZES, CUDA_SIZES, file_system
from bench.checkpoint_spec import Spec
from bench.gathering import Call, add_options, keep, settle, tell
from bench.rank_processes import run_ranks
from bench.save_efficiency_results import Line, alike, calibration, finished, fold, show, unfinished
from bench.save_efficiency_spec import WAYS, Order

RANK = "bench.arms.save_efficiency_rank"
ARM_FILES = ("arm", "holdfast_arm", "leaving", "nvrx_arms", "save_efficiency_rank", "torch_arms", "workload")
CODE = (
    "holdfast", "trainer", "bench/save_efficiency.py", "bench/save_efficiency_spec.py", "bench/checkpoint_spec.py",
    *(f"bench/arms/{part}.py" for part in ARM_FILES),
)  # fmt: skip
"""What must not differ from the commit for the numbers to be its numbers."""
LAYERS = 5
"""Of Llama-3-8B's blocks: 1.1 billion parameters, 6.5 GB of state on each of two GPUs; the article's have 6.0."""
ARM_LIMIT_S = 300.0
LEAST_S = 60.0
"""With less time than this before the deadline no arm is started."""
END_S = 8.0


def main() -> int:
    """Run the arms that are missing; 0 if all that can run here were measured, 1 if not."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    if not arguments.fold_only:
        Bench(arguments, console).run()
    lines = alike(json_lines.read([*arguments.more, arguments.raw]), arguments.order)
    result = fold(lines)
    keep(result, arguments.out)
    show(result, console)
    tell(arguments, console)
    left = unfinished(arguments.arms, lines)
    if left:
        console.print(f"still to run, by another call: {', '.join(left)}")
    return 1 if left or any("error" in row for row in result["rows"]) else 0


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.save_efficiency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", default=",".join(WAYS), help=f"comma-separated: {', '.join(WAYS)}")
    parser.add_argument("--cpu", action="store_true", help="two gloo ranks and a tiny model: tries the bench out")
    parser.add_argument("--gpus", type=int, default=2, help="ranks, one per GPU")
    parser.add_argument("--steps", type=int, default=300, help="a multiple of --every")
    parser.add_argument("--every", type=int, default=100, help="steps between two saves")
    parser.add_argument("--step-s", type=float, default=0.25, help="how long a step is made")
    parser.add_argument("--layers", type=int, help=f"blocks of the model (default: {LAYERS})")
    parser.add_argument("--threads", type=int, default=8, help="files written in parallel by each rank")
    parser.add_argument("--target", type=Path, help="folder to save into (default: a new one in /dev/shm)")
    parser.add_argument("--fold-only", action="store_true", help="measure nothing")
    add_options(parser, "save_efficiency.json", Path("bench") / "save_efficiency.jsonl")
    arguments = parser.parse_args(words)
    arguments.arms = arguments.arms.split(",")
    if unknown := sorted(set(arguments.arms) - set(WAYS)):
        parser.error(f"--arms: there is no {', '.join(unknown)}; there are: {', '.join(WAYS)}")
    if arguments.every < 2 or arguments.steps < arguments.every or arguments.steps % arguments.every:
        parser.error("--steps: a multiple of --every, which is at least 2: the last save is after the last step")
    settle(arguments, "save_efficiency.json", CODE, tried_out=arguments.cpu)
    arguments.order = _order(arguments)
    return arguments


def _order(arguments: argparse.Namespace) -> Order:
    """What all arms are told alike."""
    model = dict(CPU_SIZES) if arguments.cpu else CUDA_SIZES | {"layers": LAYERS}
    if arguments.layers:
        model["layers"] = arguments.layers
    spec = Spec(
        arm="", method="", run="", raw=str(arguments.raw), target="", cuda=not arguments.cpu,
        world=2 if arguments.cpu else arguments.gpus, saves=0, threads=arguments.threads, **model,
    )  # fmt: skip
    return Order(spec, arguments.steps, arguments.every, arguments.step_s)


class Bench:
    """The driver: starts the arms that are still missing in the raw files."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._arguments = arguments
        self._call = Call(arguments, console, END_S)

    def run(self) -> None:
        """Everything that is asked for and not there yet."""
        parent = self._arguments.target or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
        for name in self._arguments.arms:
            if name not in finished(self._lines()):
                with tempfile.TemporaryDirectory(prefix="hf-saves-", dir=parent) as target:
                    self._measure(name, target)

    def _measure(self, name: str, target: str) -> None:
        arguments = self._arguments
        if WAYS[name].needs_cuda and arguments.cpu:
            self._note("skipped", name, reason="NVRx waits for a CUDA device in every save")
            return
        if (left := self._call.time_for(name, LEAST_S)) is None:
            return
        where = {"file_system": file_system(target), "threads": arguments.threads}
        spec = arguments.order.spec
        model = {size: getattr(spec, size) for size in CUDA_SIZES}
        size = {"steps": arguments.steps, "every": arguments.every, "model": model, "target": where}
        self._note("run", hardware=record.hardware(), commit=arguments.commit, **size)
        self._call.console.print(f"{name} ...", end=" ")
        start = time.monotonic()
        order = self._order(name, target).to_json()
        ended, _ = run_ranks(RANK, order, spec.world, min(left, ARM_LIMIT_S), cuda=spec.cuda)
        self._call.console.print(f"{time.monotonic() - start:.0f} s")
        if not ended.well:
            self._note("failed", name, error=ended.why)
            self._call.failed(name, ended.why)

    def _order(self, name: str, target: str) -> Order:
        order: Order = self._arguments.order
        found = calibration(self._lines())
        batch = found["micro_batch"] if found else 0
        spec = replace(
            order.spec, arm=WAYS[name].arm, method=name, run=self._call.run, target=target, micro_batch=batch
        )  # fmt: skip
        return replace(order, spec=spec)

    def _lines(self) -> list[Line]:
        return alike(json_lines.read([*self._arguments.more, self._arguments.raw]), self._arguments.order)

    def _note(self, kind: str, method: str = "", **fields: object) -> None:
        self._call.note(kind, **{"method": method} | self._arguments.order.sizes | fields)


if __name__ == "__main__":
    sys.exit(main())
