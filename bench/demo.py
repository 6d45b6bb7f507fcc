"""`make demo`: the manifest that goes to EKS, run on this CPU, once in peace and once broken in five ways.

The broken run must end with the same weights, bit for bit, and recover from each fault within its limit; else the exit
code is 1. The result is in dist/demo/summary.json, the report in dist/demo/report.html.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.demo_view import view
from holdfast.commands.run_job import run_job
from holdfast.config import RunConfig, load_profile
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.reader import read_run
from holdfast.goodput.report import console_for_report, print_buckets
from holdfast.local import RunFolder, RunnerOptions
from holdfast.report.page import html_page, write_page
from holdfast.report.planned import what_if_of
from holdfast.report.run import ReportedRun, reported_run

ROOT = Path(__file__).resolve().parents[1]
PROFILE = "cpu-demo"
FAULTS: list[dict[str, Any]] = [
    {"kind": "exception", "rank": 1, "step": 23},
    {"kind": "hang", "rank": 0, "step": 39},
    {"kind": "rank_sigkill", "rank": 1, "step": 57},
    {"kind": "node_loss", "rank": 0, "step": 76},
    {"kind": "control_loss", "step": 97},
]
LIMITS_S = {"exception": 5.0, "hang": 12.0, "rank_sigkill": 20.0, "node_loss": 20.0, "control_loss": 20.0}
"""From injection to the end of the next finished step."""
WORDS = {
    "exception": "a rank raises an exception",
    "hang": "a rank stops calling collectives",
    "rank_sigkill": "a rank's process is killed",
    "node_loss": "a node vanishes with its pod",
    "control_loss": "the control pod vanishes",
}
LAYERS = {"in_process": "1 in process", "in_job": "2 in job", "node": "3 node"}


def main() -> int:
    """Run the demo; 0 if everything that it promises held."""
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "demo")
    out: Path = parser.parse_args().out
    console = console_for_report()
    shutil.rmtree(out, ignore_errors=True)
    start = time.monotonic()
    config = load_profile(PROFILE)
    broken_config = load_profile(PROFILE, [f"faults={json.dumps(FAULTS)}"])
    console.print(
        f"Holdfast demo: {config.training.steps} steps of a small Llama on {config.cluster.nodes} nodes and "
        f"{config.recovery.spares} hot spare, from the manifest that goes to EKS.\n"
        "First in peace, then broken in five ways. Both must end with the same weights."
    )
    codes = {}
    for name, run_config in (("clean", config), ("broken", broken_config)):
        console.print(f"\n[bold]{name} run[/bold]")
        codes[name] = run(run_config, out / name, console)
        if codes[name] != 0:
            console.print(f"the {name} run ended with exit code {codes[name]}; its logs are in {out / name}")
            return 1
    return conclude(out, config, console, time.monotonic() - start)


def run(config: RunConfig, out: Path, console: Console) -> int:
    """One run in its own folder; the runner's exit code."""
    with RunFolder(out) as folder, view(config.training.steps, console) as observer:
        return run_job(config, folder, options=RunnerOptions(), observers=[observer])


def conclude(out: Path, config: RunConfig, console: Console, wall_s: float) -> int:
    """Compare, account, write the summary and the report, print them; the demo's exit code."""
    runs = [reported(out / name / "run", f"the {name} run") for name in ("broken", "clean")]
    ledger = runs[0].ledger
    comparison = compare(out / "clean" / "run", out / "broken" / "run")
    faults = [fault_summary(recovery) for recovery in ledger.summary()["recoveries"] if recovery["kind"] in LIMITS_S]
    summary = {
        "wall_s": wall_s,
        "steps": config.training.steps,
        "faults": faults,
        "buckets": dict(ledger.buckets),
        "goodput": ledger.goodput_total,
        "weights_identical": comparison["identical"],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    report = out / "report.html"
    write_page(
        report, html_page(runs, title="Holdfast demo: broken in five ways, and in peace", what_if=what_if_of(runs))
    )
    problems = problems_of(faults, comparison)
    show(console, faults, ledger, comparison, problems)
    console.print(
        f"\n{wall_s:.0f} s in all. Raw numbers: {out / 'summary.json'}\nReport, to open in a browser: {report}",
        soft_wrap=True,
    )
    return 1 if problems else 0


def reported(run_dir: Path, name: str) -> ReportedRun:
    """A run with its ledger, as the report takes it."""
    timeline = read_run(run_dir)
    return reported_run(name, run_dir, timeline, account(timeline))


def compare(clean: Path, broken: Path) -> dict[str, Any]:
    """Every tensor of the two final checkpoints, by a process that has torch."""
    command = [sys.executable, "-m", "trainer.checkpoint.compare", str(clean), str(broken)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode == 2 or not done.stdout.strip():
        return {"identical": False, "different": [done.stderr.strip()[-500:]], "tensors": 0, "parameters": 0}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def fault_summary(recovery: dict[str, Any]) -> dict[str, Any]:
    """What summary.json says of one fault; both times count from the injection."""
    return {key: recovery[key] for key in ("kind", "rank", "step", "layer", "detected_s", "recovered_s", "lost_steps")}


def problems_of(faults: list[dict[str, Any]], comparison: dict[str, Any]) -> list[str]:
    """Everything that the demo promises and that did not hold."""
    problems = []
    for kind, limit in LIMITS_S.items():
        found = [fault for fault in faults if fault["kind"] == kind]
        if len(found) != 1:
            problems.append(f"{kind}: {len(found)} recoveries were recorded, not 1")
            continue
        recovered = found[0]["recovered_s"]
        if recovered is None or recovered > limit:
            load = f"load of this machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
            problems.append(f"{kind}: training again: {_seconds(recovered)}; the limit is {limit:g} s ({load})")
    if not comparison["identical"]:
        problems.append(f"final weights differ: {', '.join(comparison['different'][:5])}")
    return problems


def show(
    console: Console, faults: list[dict[str, Any]], ledger: Ledger, comparison: dict[str, Any], problems: list[str]
) -> None:
    """Print what happened."""
    table = Table("fault", "at step", "detected in", "training again in", "limit", "steps lost", "by layer")
    for fault in sorted(faults, key=lambda fault: fault["step"]):
        table.add_row(
            WORDS[fault["kind"]],
            str(fault["step"]),
            _seconds(fault["detected_s"]),
            _seconds(fault["recovered_s"]),
            _seconds(LIMITS_S[fault["kind"]]),
            str(fault["lost_steps"]),
            LAYERS.get(fault["layer"], str(fault["layer"])),
        )
    console.print()
    console.print(table)
    print_buckets(ledger, console)
    if comparison["identical"]:
        console.print(
            f"\n[bold green]final weights: identical to the unbroken run[/bold green] "
            f"({comparison['tensors']} tensors, {comparison['parameters']:,} parameters and their optimizer state, "
            "bit for bit)"
        )
    for problem in problems:
        console.print(f"[bold red]FAILED[/bold red] {problem}", soft_wrap=True)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
