"""`python -m bench.prediction`: does a plan come true? Durations of one real faulted run predict another one's goodput.

    python -m bench.prediction             runs what is missing (four, about 2 min each), compares, keeps the result
    python -m bench.prediction --fresh     runs all of them again
    python -m bench.prediction --compare   runs nothing: compares the runs that are there

Run it alone on a quiet machine, and change no code while it runs: a busy machine takes another time for the same thing,
and a standby whose code has changed lets ranks start without it. A prediction knows of the run that it predicts only
its config and its faults' kinds and times (the step that was under way). All durations are the other run's. The ledger
judges both.
Runs kept as bench/results/*/runs/NAME/ (a run directory's run.yaml and events/), as from a GPU, are compared with
those of the same folder. Exit code 0; 1 if a run failed or a prediction is off by more than 0.01; 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.record import commit, hardware
from holdfast.commands.run_job import run_job
from holdfast.config import ConfigError, Problem, RunConfig, load_file, load_profile, names
from holdfast.config.problems import EXIT_BAD_CONFIG
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.planner import calibrated, default_inputs
from holdfast.goodput.planner.replay import faults_of, predicted
from holdfast.goodput.reader import read_run
from holdfast.goodput.timeline import Timeline
from holdfast.local import RunFolder, RunnerOptions
from holdfast.run_directory import write_atomically

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1
PROFILE = "cpu-demo"
KEPT = ROOT / "bench" / "results" / "cpu" / "prediction.json"
OUT = ROOT / "dist" / "bench" / "prediction"
KEPT_RUNS = ROOT / "bench" / "results"
LIMIT = 0.01
"""Largest difference between predicted and measured goodput (0 to 1)."""
QUIET_LOAD = 1.0
"""Load above which a run is not worth making. Seen at 4 to 10 on 2 cores: shutdowns of 2.8 to 6.2 s, steps 10 % longer,
predictions off by up to 0.03."""
STEPS = 400
FIRST_STEP, APART_STEPS = 60, 85
KINDS = ("exception", "hang", "rank_sigkill", "node_loss")
_CODE = ("holdfast", "k8s", "trainer", "bench/prediction.py", "requirements.txt")
_PACKAGES = ("torch", "nvidia-resiliency-ext", "transformers")


@dataclass(frozen=True)
class Planned:
    """A run to make. The seed draws the order of the faults, their ranks and their steps."""

    name: str
    seed: int
    interval_steps: int

    @property
    def config(self) -> RunConfig:
        """cpu-demo with four faults, one of each kind."""
        faults = json.dumps(self.faults)
        return load_profile(
            PROFILE,
            [
                f"seed={self.seed}",
                f"training.steps={STEPS}",
                f"checkpoint.interval_steps={self.interval_steps}",
                f"faults={faults}",
            ],
        )

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Each strikes in the second half of an interval. In the first half, a save may or may not be committed yet,
        and no durations of another run can tell which: the loss of an interval hangs on 0.1 s.
        """
        dice = random.Random(self.seed)
        found = []
        for index, kind in enumerate(dice.sample(KINDS, len(KINDS))):
            saved = -(-(FIRST_STEP + APART_STEPS * index) // self.interval_steps) * self.interval_steps
            step = saved + dice.randint(self.interval_steps // 2 + 1, self.interval_steps)
            found.append({"kind": kind, "rank": dice.randint(0, 1), "step": step})
        return found


RUNS = (
    Planned("a", seed=11, interval_steps=10),
    Planned("b", seed=12, interval_steps=12),
    Planned("c", seed=13, interval_steps=14),
    Planned("d", seed=14, interval_steps=16),
)
"""Four runs are twelve pairs: each is predicted from each other one."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    name: str
    config: RunConfig
    timeline: Timeline
    ledger: Ledger


def make(planned: Planned, out: Path, *, fresh: bool) -> None:
    """Run the job unless its folder holds it, complete. Raises RuntimeError if it does not end well."""
    if not fresh and _complete(out, planned.config):
        print(f"{planned.name}: kept in {out}", flush=True)
        return
    shutil.rmtree(out, ignore_errors=True)
    print(f"{planned.name}: {planned.faults}", flush=True)
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(
            f"the machine is busy (load {load:.1f}): what lasts longer here will be predicted wrongly", file=sys.stderr
        )
    with RunFolder(out) as folder:
        code = run_job(planned.config, folder, options=RunnerOptions())
    if code:
        raise RuntimeError(f"run {planned.name} ended with exit code {code}; its logs are in {out}")


def _complete(out: Path, config: RunConfig) -> bool:
    try:
        run = read(out / "run", out.name)
    except ConfigError:
        return False
    same = run.config.model_dump() == config.model_dump()
    return same and bool(run.ledger.attempts) and run.ledger.attempts[-1].complete


def read(run_dir: Path, name: str) -> Run:
    """A run directory. Raises ConfigError if it has no config."""
    timeline = read_run(run_dir)
    return Run(name, load_file(run_dir / names.RUN_YAML), timeline, account(timeline))


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every run, predicted from each other one."""
    return [row(target, source) for target in runs for source in runs if target is not source]


def row(target: Run, source: Run) -> dict[str, Any]:
    """One prediction beside the measurement."""
    defaults = default_inputs(target.config, target.config.cluster.nodes)
    inputs = calibrated(defaults, source.timeline, source.ledger, source.config, source.name)
    found = predicted(inputs, target.config, faults_of(target.ledger))
    measured = target.ledger.goodput
    lost = [one.lost_steps for one in target.ledger.recoveries]
    return {
        "run": target.name,
        "calibrated_on": source.name,
        "predicted": found.ledger.goodput,
        "measured": measured,
        "difference": found.ledger.goodput - measured,
        "predicted_lost_steps": [one.lost_steps for one in found.run.interruptions],
        "measured_lost_steps": lost,
        "predicted_buckets_s": dict(found.ledger.buckets),
        "measured_buckets_s": dict(target.ledger.buckets),
        "not_calibrated": sorted(found.not_calibrated),
    }


def described(run: Run) -> dict[str, Any]:
    """What a run was."""
    return {
        "run": run.name,
        "seed": run.config.seed,
        "steps": run.config.training.steps,
        "interval_steps": run.config.checkpoint.interval_steps,
        "faults": [fault.id for fault in run.config.faults],
        "wall_s": run.ledger.wall_s,
        "device": run.config.device,
    }


def kept_groups() -> Iterator[list[Run]]:
    """Runs that were kept as run directories, of one machine at a time."""
    for folder in sorted(KEPT_RUNS.glob("*/runs")):
        hardware_name = folder.parent.name
        found = [read(path, f"{hardware_name}/{path.name}") for path in sorted(folder.iterdir()) if path.is_dir()]
        if len(found) > 1:
            yield found


def document(groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """What is kept."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(_CODE),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "load": os.getloadavg()[0],
        "limit": LIMIT,
        "runs": [described(run) for group in groups for run in group],
        "rows": [one for group in groups for one in rows(group)],
    }


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m bench.prediction", description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="make all runs again")
    parser.add_argument("--compare", action="store_true", help="make no run: compare those that are there")
    parser.add_argument("--runs", metavar="NAMES", default=",".join(run.name for run in RUNS), help="some of them: a,b")
    parser.add_argument("--folder", type=Path, default=OUT, help=f"where runs are kept (default: {OUT})")
    parser.add_argument("--out", type=Path, default=KEPT, help="where the result is kept")
    options = parser.parse_args()
    try:
        return _main(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


def _main(options: argparse.Namespace) -> int:
    chosen = _chosen(options.runs)
    for planned in chosen:
        if not options.compare:
            make(planned, options.folder / planned.name, fresh=options.fresh)
    ours = [read(options.folder / planned.name / "run", planned.name) for planned in chosen]
    found = document([ours, *kept_groups()])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(found, indent=1) + "\n")
    worst = max(abs(one["difference"]) for one in found["rows"])
    for one in found["rows"]:
        print(
            f"{one['run']} from {one['calibrated_on']}: predicted {one['predicted']:.4f}, measured "
            f"{one['measured']:.4f}, off by {one['difference']:+.4f}"
        )
    print(f"largest difference {worst:.4f}, allowed {LIMIT}; {options.out}")
    return 0 if worst <= LIMIT else 1


def _chosen(text: str) -> list[Planned]:
    known = {run.name: run for run in RUNS}
    asked = text.split(",")
    unknown = [name for name in asked if name not in known]
    if unknown or len(set(asked)) < 2:
        why = f"there is no run {unknown[0]!r}" if unknown else "a pair needs two runs"
        fix = f"name two or more of {','.join(known)}"
        raise ConfigError([Problem("--runs", text, why, fix)], "prediction")
    return [known[name] for name in dict.fromkeys(asked)]


if __name__ == "__main__":
    sys.exit(main())
