"""`python -m bench.article`: the published experiment, with the same five faults for each arm of the restart layers.

The article trains 2000 steps of 0.2 to 0.25 s and breaks them five times, but not each arm alike. Here each arm is a
job of its own, `holdfast run` as a process, with the same steps, saves and faults; only what answers a fault differs.
Its ledger gives the row. A call that comes to its deadline asks the job to save and leave; the next call with the same
--work goes on with it. Rows are appended to a raw file and never rewritten. On two GPUs, one arm in a call of ten
minutes, with runs in memory:

    python -m bench.article --profile gpu-local --set cluster.ranks_per_node=2 --hardware h200x2 \\
        --work /dev/shm/article --raw RAW.jsonl --more FORMER.jsonl --arms all-on --deadline 570

Arms may run side by side on a machine with more GPUs: a call for each, with its own --raw, --out and
CUDA_VISIBLE_DEVICES; `--fold-only --more RAW.jsonl ...` then makes one result of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import json_lines
from bench.article_job import STOP_S, Ended, Job
from bench.article_rows import CODE, is_whole, result, rows_of, show
from bench.demo import ROOT
from bench.gathering import add_options, keep, settle, tell
from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, RunConfig, load_profile

STEPS = 2000
FAULTS = (
    ("exception", 62, 4),
    ("exception", 239, 12),
    ("hang", 574, 12),
    ("exception", 1320, 2),
    ("exception", 1529, 1),
)
"""The article's: kind, step, rank of its 16. Ranks are folded onto those there are."""
COMMON = ("recovery.spares=0", "training.min_step_s=0.2", "checkpoint.interval_steps=10")
POD = ("recovery.in_process=false", "recovery.in_job=false", "recovery.standby=false", "recovery.short_pauses=false")
PROCESS = (
    "recovery.in_process=true",
    "recovery.in_job=true",
    "recovery.max_in_job_restarts=0",
    "recovery.standby=false",
    "recovery.short_pauses=false",
)
"""The wrapper needs ft_launcher's store. The launcher starts no rank again here: what layer 1 does not cure ends the
pod."""
JOB = ("recovery.in_process=false", "recovery.in_job=true", "recovery.standby=true", "recovery.short_pauses=true")
ALL = ("recovery.in_process=true", "recovery.in_job=true", "recovery.standby=true", "recovery.short_pauses=true")
ARMS = {"pod-restart": POD, "in-process": PROCESS, "in-job": JOB, "all-on": ALL}
_WRAPPER = (
    "recovery.step_timeout_floor_s=10",
    "recovery.in_process_soft_timeout_s=2",
    "recovery.in_process_interval_s=0.1",
)
_LIMITS = {
    "pod-restart": ("recovery.process_group_timeout_s=60",),
    "in-process": _WRAPPER,
    "in-job": ("recovery.step_timeout_floor_s=5",),
    "all-on": _WRAPPER,
}
_NEAR = "checkpoint.local.interval_steps=2"
ON_GPUS = {arm: (*limits, _NEAR) for arm, limits in _LIMITS.items()}
"""Limits for steps of 0.2 s, where the profile's are for steps of any length. Without a restart layer only the
timeout of NCCL ends a hang: the article's 60 s. On a CPU the profile's limits are short enough, and gloo's timeout of
a few seconds ends a hang in every arm. In every arm the nodes' memory keeps a copy of every second step, beside the
saves to the shared storage: steps done again after five faults were 1.5 % of the time without it."""
LEAST_S = 90.0
"""With less time than this before the deadline no job is started."""


def main() -> int:
    """Run what is missing; 0 if every arm that was asked for has its rows, 1 if not, 2 for bad input."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    end = time.monotonic() + arguments.deadline
    try:
        # All of them before the first: a wrong --set must not show after ten minutes.
        configs = {
            arm: config_of(arm, arguments.profile, arguments.overrides, arguments.steps) for arm in arguments.arms
        }
    except ConfigError as error:
        console.print(str(error), soft_wrap=True, style="red", markup=False)
        return 2
    if not arguments.fold_only:
        for arm in missing(arguments):
            if end - time.monotonic() < LEAST_S:
                console.print(f"{arm}: not started, {end - time.monotonic():.0f} s are left before the deadline")
                continue
            run(arm, configs[arm], arguments, end, console)
    found = result(rows_of(raw_files(arguments)), configs[arguments.arms[0]], arguments)
    keep(found, arguments.out)
    show(found["rows"], console)
    tell(arguments, console)
    return 1 if missing(arguments) else 0


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.article", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="cpu-demo", help="cpu-demo, or gpu-local")
    add_set(parser, "override a key, in every arm")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--count", type=int, default=1, help="rows of each arm")
    parser.add_argument("--steps", type=int, default=STEPS, help="fewer, to try it out: the faults move with them")
    work = ROOT / "dist" / "article"
    parser.add_argument("--work", type=Path, default=work, help="folder of the jobs; a job that was cut short is there")
    parser.add_argument("--raw", type=Path, help="JSON lines, a row each; added to (default: rows.jsonl in --work)")
    add_options(parser, "article_faults.json", None)
    parser.add_argument("--fold-only", action="store_true", help="run nothing, only make the result")
    arguments = parser.parse_args(words)
    if arguments.count < 1:
        parser.error("--count: at least 1")
    if arguments.steps < STEPS // FAULTS[0][1] + 1:
        parser.error(f"--steps: at least {STEPS // FAULTS[0][1] + 1}, so that the first fault is in a step")
    arguments.raw = arguments.raw or arguments.work / "rows.jsonl"
    settle(arguments, "article_faults.json", CODE)
    return arguments


def raw_files(arguments: argparse.Namespace) -> list[Path]:
    """Files with rows, former ones first."""
    return [*arguments.more, arguments.raw]


def config_of(arm: str, profile: str, sets: list[str], steps: int) -> RunConfig:
    """The config of an arm's job. Raises ConfigError."""
    bare = load_profile(profile, [*COMMON, *ARMS[arm], *sets])
    tight = ON_GPUS[arm] if bare.device == "cuda" else ()
    faults = [
        {"kind": kind, "step": step * steps // STEPS, "rank": rank % bare.world_size} for kind, step, rank in FAULTS
    ]
    return load_profile(
        profile, [*COMMON, *ARMS[arm], *tight, *sets, f"training.steps={steps}", f"faults={json.dumps(faults)}"]
    )


def missing(arguments: argparse.Namespace) -> list[str]:
    """Arms that have too few rows with these steps, once for each row."""
    rows = [row for row in rows_of(raw_files(arguments)) if row["steps"] == arguments.steps]
    return [
        arm
        for arm in arguments.arms
        for _ in range(arguments.count - sum(row["arm"] == arm and is_whole(row) for row in rows))
    ]


def run(arm: str, config: RunConfig, arguments: argparse.Namespace, end: float, console: Console) -> None:
    """Run one job to its end or to the deadline, and keep its row if it has come to its end."""
    job = Job(arguments.work / arm, config)
    console.print(f"{arm}: {'goes on' if job.prepare() else 'starts'}, {end - time.monotonic():.0f} s at most")
    ended = job.run(end)
    if ended is Ended.CUT_SHORT:
        console.print(f"{arm}: cut short {STOP_S:.0f} s before the deadline; call it again to go on", soft_wrap=True)
        return
    row = job.row(arm, arguments.commit) if ended is Ended.COMPLETE else None
    if row is not None:
        json_lines.append(arguments.raw, row)
        shutil.rmtree(job.out / "run" / "checkpoints", ignore_errors=True)  # `holdfast report` needs the rest only
    kept = job.set_aside("done" if row is not None and is_whole(row) else "failed")
    if row is None or not is_whole(row):
        why = "a fault has not struck, or was not recovered from" if row is not None else f"it ended with {job.code}"
        console.print(f"{arm} failed: {why}; what it left is in {kept}", soft_wrap=True, style="red")


if __name__ == "__main__":
    sys.exit(main())
