"""`python -m bench.node_recovery`: seconds from a lost node, or a lost control pod, to the next finished step.

One run of cpu-demo for each fault, in which it strikes five times, far enough apart for the lost node's replacement to
be the next spare. Read from the ledgers of the runs. Writes bench/results/cpu/node_recovery.json. Exit code 1 if a run
did not end well or a fault is missing in its ledger, not if it was slow: the numbers are for people to judge.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import commit, hardware
from holdfast.commands.run_job import run_job
from holdfast.config import RunConfig, load_profile
from holdfast.goodput.failures import PARTS, Recovery
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run
from holdfast.local import RunFolder, RunnerOptions

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1
PROFILE = "cpu-demo"
KEPT = ROOT / "bench" / "results" / "cpu" / "node_recovery.json"
GOALS_S = {"node_loss": 12.0, "control_loss": 20.0}
TIMES = 5
FIRST_STEP, APART_STEPS = 20, 120
"""At 0.2 s a step, 24 s lie between a recovery and the next fault: a new node's pod is the next spare by then."""
_CODE = ("holdfast", "k8s", "trainer", "bench/node_recovery.py", "requirements.txt")
_PACKAGES = ("torch", "nvidia-resiliency-ext", "transformers")


def config_of(kind: str, times: int) -> RunConfig:
    """cpu-demo, long enough for `times` faults of the kind. The node of rank 0 goes too, every other time."""
    steps = [FIRST_STEP + APART_STEPS * index for index in range(times)]
    faults = [{"kind": kind, "rank": index % 2, "step": step} for index, step in enumerate(steps)]
    return load_profile(PROFILE, [f"faults={json.dumps(faults)}", f"training.steps={steps[-1] + 20}"])


def measure(kind: str, out: Path, times: int) -> list[Recovery]:
    """Run the job in `out`; how it got over each injected fault. Raises RuntimeError if it did not."""
    shutil.rmtree(out, ignore_errors=True)
    config = config_of(kind, times)
    with RunFolder(out) as folder:
        code = run_job(config, folder, options=RunnerOptions())
    if code:
        raise RuntimeError(f"the run with {kind} ended with exit code {code}; its logs are in {out}")
    recoveries = [one for one in account(read_run(out / "run")).recoveries if one.fault.kind == kind]
    if len(recoveries) != times or any(one.recovered_s is None for one in recoveries):
        raise RuntimeError(f"{len(recoveries)} of {times} faults of kind {kind} are in the ledger of {out}")
    return recoveries


def row(kind: str, recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """One kind of fault: each recovery in seconds, their median, and the median of each part."""
    times = [one.recovered_s for one in recoveries if one.recovered_s is not None]
    parts = {part: [s for one in recoveries if (s := one.breakdown.get(part)) is not None] for part in PARTS}
    return {
        "arm": "holdfast",
        "fault": kind,
        "layer": ", ".join(sorted({str(one.layer) for one in recoveries})),
        "n": len(times),
        "median_s": median(times),
        "goal_s": GOALS_S[kind],
        "recovered_s": times,
        "lost_steps": [one.lost_steps for one in recoveries],
        "breakdown_s": {part: median(values) if values else None for part, values in parts.items()},
    }


def main() -> int:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.node_recovery", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "node-recovery", help="folder of the runs")
    parser.add_argument("--times", type=int, default=TIMES, help="faults of each kind")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file to write")
    args = parser.parse_args()
    rows = []
    for kind in GOALS_S:
        try:
            rows.append(row(kind, measure(kind, args.out / kind, args.times)))
        except RuntimeError as error:
            print(error)
            return 1
        print(f"{kind}: median {rows[-1]['median_s']:.1f} s of {rows[-1]['n']}, goal {GOALS_S[kind]:g} s")
    record = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(_CODE),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "profile": PROFILE,
        "rows": rows,
    }
    args.kept.parent.mkdir(parents=True, exist_ok=True)
    args.kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
