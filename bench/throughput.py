"""`python -m bench.throughput`: tokens per second and MFU, ours beside a plain eager FSDP2 script and torchtitan.

All train the same model shape on the same synthetic tokens, with the same sequence and global batch, in bfloat16, one
setting at a time in processes of its own, and all settings that were tried are kept. Each appends what it measured at
once to a raw file; what is finished is not run again (same --raw). On two GPUs, twice or more, until nothing is left:

    python -m bench.throughput --raw RAW.jsonl --hardware h200x2 --trace --deadline 570

torchtitan is measured where it can be imported: `pip install --no-deps --target DIR torchtitan==0.2.2` with what it
imports, and PYTHONPATH=DIR. See the result file for the settings, docs/results.md for the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench import json_lines, record
from bench.demo import ROOT
from bench.gathering import Call, add_options, keep, settle, tell
from bench.rank_processes import fits_not, run_ranks
from bench.throughput_results import alike, fold, show, to_do, unfinished
from bench.throughput_spec import ARMS, SHAPES, TITAN, TRIALS, Sizes, Spec, Trial

RANK = "bench.arms.throughput_rank"
CODE = (
    "holdfast", "trainer", "bench/arms/leaving.py", "bench/arms/silent.py",
    *(f"bench/arms/throughput_{part}.py" for part in ("arm", "clock", "eager", "holdfast", "rank", "titan", "trace")),
    *("bench/throughput.py", "bench/throughput_spec.py", "bench/rank_processes.py"),
)  # fmt: skip
"""What must not differ from the commit for the numbers to be its numbers."""
TRIAL_LIMIT_S = 240.0
LEAST_S = 40.0
"""With less time than this before the deadline no trial is started."""
END_S = 8.0
"""Before the deadline: to end processes and write the result."""
TITAN_MISSING = (
    "torchtitan cannot be imported here; `pip install --no-deps --target DIR torchtitan==0.2.2` and PYTHONPATH=DIR "
    "(0.3.0 asks torch's FSDP2 for what 2.11 does not have)"
)
TITAN_ON_GLOO = "torchtitan divides gradients by an operation that gloo does not have: it is tried out on one rank only"


def main() -> int:
    """Run the trials that are missing. 0 if all that were asked for were measured, do not fit or cannot run here; 1 if
    one failed or is still to run; 2 for a bad command line."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    if not arguments.fold_only:
        Bench(arguments, console).run()
    lines = json_lines.read([*arguments.more, arguments.raw])
    result = fold(lines, arguments.sizes)
    keep(result, arguments.out)
    show(result, console)
    tell(arguments, console)
    errors = [row[key] for row in result["rows"] for key in ("error", "trace_error") if key in row]
    left = unfinished(arguments.trials, alike(lines, arguments.sizes), trace=arguments.trace)
    if left:
        console.print(f"still to run, by another call: {', '.join(left)}", soft_wrap=True, markup=False)
    return 1 if left or not all(fits_not(error) for error in errors) else 0


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(SHAPES), help="comma-separated: 8b (2 GPUs), 1gpu, 8b-1gpu")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"comma-separated: {', '.join(ARMS)}")
    parser.add_argument("--trial", action="append", help="only this one, by its name; may be repeated (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the trials, and end")
    parser.add_argument("--cpu", action="store_true", help="tiny models on gloo: tries the bench out")
    parser.add_argument("--trace", action="store_true", help="also trace two steps of each trial")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them; compiles")
    parser.add_argument("--fold-only", action="store_true", help="measure nothing")
    add_options(parser, "throughput.json", Path("bench") / "throughput.jsonl")
    arguments = parser.parse_args(words)
    if min(arguments.steps, arguments.warmup) < 1:
        parser.error("--steps and --warmup: at least 1")
    arguments.trials = [
        trial
        for trial in TRIALS
        if trial.model in arguments.models.split(",") and trial.arm in arguments.arms.split(",")
    ]
    if arguments.trial:
        by_name = {trial.name: trial for trial in TRIALS}
        if unknown := sorted(set(arguments.trial) - set(by_name)):
            parser.error(f"--trial: there is no {', '.join(unknown)}; there are: {', '.join(by_name)}")
        arguments.trials = [by_name[name] for name in arguments.trial]
    if arguments.list:
        print("\n".join(trial.name for trial in arguments.trials))
        parser.exit()
    if not arguments.trials:
        parser.error(f"no trial has such a model and arm; models: {', '.join(SHAPES)}; arms: {', '.join(ARMS)}")
    arguments.sizes = Sizes(not arguments.cpu, arguments.warmup, arguments.steps)
    settle(arguments, "throughput.json", CODE, tried_out=arguments.cpu)
    return arguments


class Bench:
    """The driver: starts what is still missing in the raw files."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._arguments = arguments
        self._call = Call(arguments, console, END_S)

    def run(self) -> None:
        """Everything that is asked for and not there yet."""
        arguments = self._arguments
        self._note("run", hardware=record.hardware(), commit=arguments.commit, cuda=not arguments.cpu)
        lines = alike(json_lines.read([*arguments.more, arguments.raw]), arguments.sizes)
        for trial, parts in to_do(arguments.trials, lines, trace=arguments.trace):
            self._measure(trial, parts)

    def _measure(self, trial: Trial, parts: set[str]) -> None:
        sizes = self._arguments.sizes
        if reason := _impossible(trial, sizes):
            self._note("skipped", trial.name, **sizes.of(trial.model), reason=reason)
            return
        if (left := self._call.time_for(trial.name, LEAST_S)) is None:
            return
        self._call.console.print(f"{trial.name} ...")
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hf-throughput-") as folder:
            traced = 2 if "trace" in parts else 0
            spec = Spec(trial, sizes, self._call.run, str(self._arguments.raw), folder, "steps" in parts, traced)
            limit_s = min(left, TRIAL_LIMIT_S)
            ended, said = run_ranks(RANK, spec.to_json(), spec.world, limit_s, cuda=spec.cuda, more=_caches())
        self._call.console.print(f"{said.strip()}\n{time.monotonic() - start:.0f} s", soft_wrap=True, markup=False)
        if not ended.well:
            cut = ended.late and limit_s < TRIAL_LIMIT_S
            self._note("failed", trial.name, **sizes.of(trial.model), error=ended.why, cut=cut)
            self._call.failed(trial.name, ended.why)

    def _note(self, kind: str, trial: str = "", **fields: object) -> None:
        self._call.note(kind, trial=trial, **fields)


def _impossible(trial: Trial, sizes: Sizes) -> str:
    """Why this machine cannot run it; empty if it can."""
    if trial.arm == TITAN and importlib.util.find_spec("torchtitan") is None:
        return TITAN_MISSING
    return TITAN_ON_GLOO if trial.arm == TITAN and not sizes.cuda and sizes.shapes[trial.model].gpus > 1 else ""


def _caches() -> dict[str, str]:
    """Compiled code is kept for the next trial and the next call: what is compared is steps."""
    folder = ROOT / "dist" / "bench" / "compiled"
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


if __name__ == "__main__":
    sys.exit(main())
