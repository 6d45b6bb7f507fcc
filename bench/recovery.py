"""`python -m bench.recovery`: seconds from a fault to the end of the next finished step, with and without each measure.

Each arm is a job of its own, `holdfast run` as a process, broken several times at steps far apart; its ledger says how
long each recovery took and with what. Jobs of the arms take turns, so that all arms see the same machine. Every
recovery is appended at once to a raw file of JSON lines, from which the result is folded: a bench that was cut short
goes on where it stopped. On two GPUs, in calls of at most ten minutes:

    python -m bench.recovery --profile gpu-local --set cluster.ranks_per_node=2 --hardware h200x2 --deadline 560
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.demo import ROOT
from bench.gathering import add_options, keep, settle, tell
from bench.recovery_records import CODE, Sample, WorkFile, about, fold, show
from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, RunConfig, load_profile
from holdfast.goodput.failures import Recovery
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run

KINDS = ("exception", "hang", "rank_sigkill")
"""In the order in which a job meets them."""
SETTLE_STEPS = 12
"""Steps between two faults: the writer of a new rank has imported torch, and a save was committed."""
COMMON = ("recovery.spares=0", "training.min_step_s=0.2", "checkpoint.interval_steps=5", "recovery.in_process=true")
OFF = ("recovery.standby=false", "recovery.short_pauses=false")
ON = ("recovery.standby=true", "recovery.short_pauses=true")
NVRX_DEFAULTS = (
    *OFF,
    "recovery.in_process_interval_s=1",
    "recovery.in_process_soft_timeout_s=60",
    "recovery.in_process_hard_timeout_s=90",
    "recovery.in_process_heartbeat_timeout_s=30",
    "recovery.in_process_barrier_timeout_s=120",
    "recovery.step_section_timeout_s=120",
    "recovery.checkpoint_section_timeout_s=180",
    "recovery.monitor_interval_s=0.3",
    "recovery.workload_check_interval_s=0.5",
    "recovery.workers_stop_timeout_s=15",
)
"""NVRx 0.6.0's own, but for what it leaves off (sections) and its check of sections every 5 s, which our config does
not let anybody choose; on a CPU a hang is ended by the timeout of gloo, which is not NVRx's."""
ARMS = {
    "holdfast": ON,
    "no-standby": ("recovery.standby=false", "recovery.short_pauses=true"),
    "stock-pauses": OFF,
    "nvrx-defaults": NVRX_DEFAULTS,
}
"""The first has everything on; each of the others is without something more."""
GPU_GROUP_S = 150
"""Timeout of NCCL in the arm with NVRx's defaults: after all others (holdfast check says so)."""
FAULT_S = 90.0
"""Longest that a job may take for one fault; a job that takes longer is ended, and what it has done counts."""
START_S = 90.0
"""Longest start and end of a job."""


@dataclass(frozen=True)
class Plan:
    """One job: which arm, and which faults in which order."""

    arm: str
    kinds: tuple[str, ...]

    def config(self, profile: str, sets: list[str]) -> RunConfig:
        """Its config. Raises ConfigError."""
        ranks = min(2, load_profile(profile, sets).world_size)
        faults = [
            {"kind": kind, "step": SETTLE_STEPS * (index + 1), "rank": index % ranks}
            for index, kind in enumerate(self.kinds)
        ]
        words = [*COMMON, *ARMS[self.arm], *sets, f"training.steps={SETTLE_STEPS * (len(self.kinds) + 1)}"]
        if self.arm == "nvrx-defaults" and load_profile(profile, sets).device == "cuda":
            words.append(f"recovery.process_group_timeout_s={GPU_GROUP_S}")
        return load_profile(profile, [*words, f"faults={json.dumps(faults)}"])

    @property
    def limit_s(self) -> float:
        """Longest that it may take."""
        return START_S + FAULT_S * len(self.kinds)


def main() -> int:
    """Run what is missing; 0 if every arm has enough of every fault."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    deadline = time.monotonic() + arguments.deadline
    work = WorkFile(arguments.raw, arguments.more)
    try:
        while (plan := next_plan(work, arguments)) is not None and deadline - time.monotonic() > START_S:
            run(plan, arguments, work, deadline, console)
    except ConfigError as error:
        console.print(str(error), soft_wrap=True, style="red")
        return 2
    result = about(arguments.profile, arguments.overrides, arguments.commit) | {"rows": fold(work.samples)}
    keep(result, arguments.out)
    show(result["rows"], console)
    tell(arguments, console)
    return 0 if next_plan(work, arguments) is None else 1


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--profile", default="cpu-demo", help="cpu-demo, or gpu-local")
    add_set(parser, "override a key, in every arm")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is broken")
    parser.add_argument("--count", type=int, default=6, help="recoveries of each kind in each arm")
    parser.add_argument("--per-job", type=int, default=2, help="faults of each kind in one job")
    add_options(parser, "recovery.json", Path("recovery") / "recoveries.jsonl")
    arguments = parser.parse_args(words)
    if min(arguments.count, arguments.per_job) < 1:
        parser.error("--count and --per-job: at least 1")
    settle(arguments, "recovery.json", CODE)
    return arguments


def next_plan(work: WorkFile, arguments: argparse.Namespace) -> Plan | None:
    """The arm that is furthest behind, and the faults that it lacks; None if no arm lacks any."""
    lacking = {}
    for arm in arguments.arms:
        lacks = {kind: arguments.count - work.count(arm, kind) for kind in arguments.kinds}
        kinds = [kind for turn in range(arguments.per_job) for kind in arguments.kinds if lacks[kind] > turn]
        if kinds:
            lacking[arm] = (sum(max(0, lack) for lack in lacks.values()), tuple(kinds))
    if not lacking:
        return None
    arm = max(lacking, key=lambda name: lacking[name][0])
    return Plan(arm, lacking[arm][1])


def run(plan: Plan, arguments: argparse.Namespace, work: WorkFile, deadline: float, console: Console) -> None:
    """Run one job, or as much of it as there is time for, and keep its recoveries."""
    config = plan.config(arguments.profile, arguments.overrides)
    folder = arguments.raw.parent / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    profile = folder / "profile.yaml"
    profile.write_text(config.model_dump_json(), encoding="utf-8")
    limit_s = min(plan.limit_s, deadline - time.monotonic())
    console.print(f"{plan.arm}: {', '.join(plan.kinds)}; at most {limit_s:.0f} s")
    code = execute(profile, folder, limit_s)
    found = [sample_of(plan.arm, recovery, config.device) for recovery in recoveries(folder / "out" / "run")]
    for sample in (sample for sample in found if sample is not None):
        work.add(sample)
        console.print(f"  {sample.fault}: {sample.seconds:.2f} s, {sample.layer}")
    if code not in (0, None) or not any(found):
        work.fail(plan.arm)  # so that a job that cannot run is not tried for ever
        console.print(f"  the job ended with {code}; its output is in {folder / 'output.txt'}", soft_wrap=True)


def execute(profile: Path, folder: Path, limit_s: float) -> int | None:
    """Run the job in `folder`/out; its exit code, or None if it was ended after the limit."""
    command = [sys.executable, "-m", "holdfast", "run", "--profile", str(profile), "--out", str(folder / "out")]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)  # its pods end with it
            process.wait()
            return None


def recoveries(run_dir: Path) -> tuple[Recovery, ...]:
    """What the ledger says; nothing if the job did not come so far as to leave events."""
    try:
        return account(read_run(run_dir)).recoveries
    except (ConfigError, OSError, ValueError):
        return ()


def sample_of(arm: str, recovery: Recovery, device: str) -> Sample | None:
    """One injected fault that was recovered from; None for anything else."""
    if recovery.recovered_s is None or recovery.layer is None or not recovery.fault.id:
        return None
    name = {"rank_sigkill": "sigkill", "hang": "nccl_hang" if device == "cuda" else "hang"}
    kind = recovery.fault.kind
    return Sample(arm, kind, name.get(kind, kind), recovery.layer, recovery.recovered_s, dict(recovery.breakdown))


if __name__ == "__main__":
    sys.exit(main())
