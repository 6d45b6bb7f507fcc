"""`make bench`: what a save costs a training step, ours beside those of torch and NVRx, on this machine.

One process group per arm on the same model, batch and file target. Each appends what it saw to a raw file of JSON
lines at once; the result is folded from that file. A run that was cut short goes on where it stopped (same --raw), and
what two runs gathered is folded together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import record
from bench.checkpoint_memory import Sampler, touch
from bench.checkpoint_results import Raw, fold
from bench.checkpoint_spec import CALIBRATE, METHODS, MICRO_BATCH, PROFILE, WRITE, Spec
from bench.demo import ROOT
from bench.gathering import keep, tell
from bench.rank_processes import Ended, run_ranks

CODE = (
    "holdfast", "trainer", "bench/arms", "bench/checkpoint.py", "bench/checkpoint_spec.py", "bench/rank_processes.py",
)  # fmt: skip
"""What must not differ from the commit for the numbers to be its numbers."""
SAVES_AT_ONCE = 4
"""Ours keeps two and writes a third; in /dev/shm, the staged copies take as much as one more."""
LEAST_S = 45.0
"""With less time than this before the deadline no arm is started."""
ARM_LIMIT_S = 480.0
"""Longest run of one arm's processes."""
CUDA_SIZES = {"layers": 13, "hidden": 4096, "intermediate": 14336, "heads": 32, "kv_heads": 8, "sequence": 1024}
"""13 of the 32 blocks of Llama-3-8B: 2.8 billion parameters, 17 GB of state on each of two ranks."""
CPU_SIZES = {"layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv_heads": 2, "sequence": 32}


def main() -> int:
    """Run the arms; 0 if every one that this machine can run has left a result."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    arguments.raw.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments, console)
    if not arguments.fold_only:
        bench.run()
    result = fold(Raw.read([arguments.raw, *arguments.more]))
    keep(result, arguments.out)
    show(result, console)
    tell(arguments, console)
    return 1 if any("error" in row for row in result["rows"]) else 0


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "bench" / "checkpoint.json", help="the result")
    parser.add_argument("--raw", type=Path, help="JSON lines; kept and added to (default: beside --out)")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="further raw files to fold in")
    parser.add_argument("--fold-only", action="store_true", help="measure nothing, only fold the raw files")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpus", type=int, default=2, help="ranks, one per GPU")
    where.add_argument("--cpu", action="store_true", help="two gloo ranks and a tiny model; tries the bench out")
    parser.add_argument("--arms", help=f"comma-separated: {', '.join([WRITE, PROFILE, *METHODS])} (default: all)")
    parser.add_argument("--target", type=Path, help="folder to save into (default: a new one in /dev/shm)")
    parser.add_argument("--saves", type=int, help="saves per arm instead of each method's own number")
    parser.add_argument("--block", type=int, default=6, help="steps without a save before and after each save")
    parser.add_argument("--lead-in", type=int, default=20, help="steps before the first save")
    parser.add_argument("--threads", type=int, default=4, help="files written in parallel by each rank")
    parser.add_argument("--write-mib", type=float, help="bytes per rank of the write bandwidth (default: a shard's)")
    parser.add_argument("--touch", type=int, default=0, metavar="GIB", help="have the machine provide its memory first")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which the bench has ended")
    parser.add_argument("--commit", help="commit that is measured (default: asks git)")
    for name in CUDA_SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="size of the model")
    arguments = parser.parse_args(words)
    arguments.raw = (arguments.raw or arguments.out.with_suffix(".jsonl")).absolute()
    known = [WRITE, *[PROFILE] * (not arguments.cpu), *METHODS]
    arguments.arms = known if arguments.arms is None else arguments.arms.split(",")
    if unknown := sorted(set(arguments.arms) - set(known)):
        parser.error(f"--arms: there is no {', '.join(unknown)}; there are: {', '.join(known)}")
    return arguments


class Bench:
    """The driver: starts what is still missing in the raw file."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._end = time.monotonic() + arguments.deadline
        self._run = f"{time.time():.0f}-{os.getpid()}"
        self._world = 2 if arguments.cpu else arguments.gpus
        sizes = CPU_SIZES if arguments.cpu else CUDA_SIZES
        self._sizes = {name: getattr(arguments, name) or value for name, value in sizes.items()}

    def run(self) -> None:
        """Everything that is asked for and not there yet."""
        raw = self._arguments.raw
        parent = self._arguments.target or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=parent) as target:
            self._base = Spec(
                arm="", method="", run=self._run, raw=str(raw), target=target, cuda=not self._arguments.cpu,
                world=self._world, saves=0, threads=self._arguments.threads, block=self._arguments.block,
                lead_in=self._arguments.lead_in, **self._sizes,
            )  # fmt: skip
            if self._arguments.touch:
                self._note("touched", seconds=touch(self._arguments.touch), gib=self._arguments.touch)
            self._note("run", **self._machine(target))
            calibration = self._calibrated()
            if calibration is None:
                return
            self._warn_of_little_room(target, calibration)
            for name in self._arguments.arms:
                if name not in Raw.read([raw]).finished:
                    self._measure(name, calibration)

    def _machine(self, target: str) -> dict[str, Any]:
        return {
            "hardware": record.hardware(),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
            "commit": self._arguments.commit or record.commit(CODE),
            "target": {"file_system": file_system(target), "threads": self._arguments.threads},
            "world": self._world,
            "model": self._sizes,
            "block": self._arguments.block,
        }

    def _calibrated(self) -> dict[str, Any] | None:
        found = Raw.read([self._arguments.raw]).calibration
        if found is None:
            self._start(replace(self._base, arm=CALIBRATE, method=CALIBRATE))
            found = Raw.read([self._arguments.raw]).calibration
        return found

    def _warn_of_little_room(self, target: str, calibration: dict[str, Any]) -> None:
        free = shutil.disk_usage(target).free
        needed = SAVES_AT_ONCE * self._world * calibration["shard_bytes"]
        if free < needed:
            self._console.print(f"{target}: {free / 1e9:.0f} GB are free, up to {needed / 1e9:.0f} GB are needed")

    def _measure(self, name: str, calibration: dict[str, Any]) -> None:
        if name == WRITE:
            shard = int(self._arguments.write_mib * 2**20 if self._arguments.write_mib else calibration["shard_bytes"])
            self._start(replace(self._base, arm=WRITE, method=WRITE, shard_bytes=shard))
            return
        if name == PROFILE:
            self._start(replace(self._base, arm=PROFILE, method=PROFILE, micro_batch=calibration["micro_batch"]))
            return
        method = METHODS[name]
        if method.needs_cuda and self._arguments.cpu:
            self._note("skipped", name, reason="NVRx waits for a CUDA device in every save")
            return
        batch = calibration[MICRO_BATCH[method.step]]
        saves = self._arguments.saves or method.saves
        self._start(replace(self._base, arm=method.arm or name, method=name, saves=saves, micro_batch=batch))

    def _start(self, spec: Spec) -> None:
        left = self._end - time.monotonic()
        if left < LEAST_S:
            self._note("failed", spec.method, error=f"not started: {left:.0f} s were left before the deadline")
            return
        self._console.print(f"{spec.method} ...", end=" ")
        start = time.monotonic()
        with Sampler(Path(spec.target), file_system(spec.target) in ("tmpfs", "ramfs")) as sampler:
            limit_s = min(left - 5.0, ARM_LIMIT_S)
            ended, _ = run_ranks("bench.arms.rank", spec.to_json(), spec.world, limit_s, cuda=spec.cuda)
        self._note("memory", spec.method, used=sampler.used)
        self._console.print(f"{time.monotonic() - start:.0f} s")
        self._judge(spec, ended)

    def _judge(self, spec: Spec, ended: Ended) -> None:
        if not ended.well:
            self._note("failed", spec.method, error=ended.why)
            self._console.print(f"[red]{spec.method} failed[/red]: {ended.why}", soft_wrap=True)

    def _note(self, kind: str, method: str = "", **fields: Any) -> None:
        line = {"kind": kind, "method": method, "run": self._run, "at": time.time(), **fields}
        with open(self._arguments.raw, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def file_system(path: str) -> str:
    """Kind of the file system that a path is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split()
        if os.path.commonpath([mount, os.path.realpath(path)]) == mount and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def show(result: dict[str, Any], console: Console) -> None:
    """Print the rows."""
    columns = (
        "method",
        "saves",
        "blocked",
        "hidden",
        "total ms",
        "95 %",
        "of step",
        "first ms",
        "written s",
        "host GB",
    )
    table = Table(*columns)
    for row in result["rows"]:
        if "total_s" in row:
            table.add_row(*_cells(row))
        else:
            console.print(f"{row['method']}: {row.get('error') or row.get('skipped')}", soft_wrap=True, markup=False)
    console.print(table)
    if write := result.get("write"):
        console.print(
            f"background write {write['ours_gb_s']:.2f} GB/s, plain threads {write['plain_gb_s']:.2f} GB/s "
            f"({write['ratio']:.0%})"
        )


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["total_ci95_s"]
    return [
        f"{row['method']}{' (cut short)' * ('incomplete' in row)}{' WRONG' * (row['content_is_right'] is False)}",
        str(row["saves"]),
        *(f"{1000 * row[key]:.1f}" for key in ("blocked_s", "hidden_s", "total_s")),
        f"{1000 * low:.1f} to {1000 * high:.1f}",
        f"{row['total_s'] / row['step_s']:.1%}",
        f"{1000 * row['first_blocked_s']:.1f}",
        f"{row['background_s']:.2f}",
        "-" if row["host_bytes"] is None else f"{row['host_bytes'] / 1e9:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
