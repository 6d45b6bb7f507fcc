"""`python -m bench.scale`: simulates Llama 3's cluster, keeps the numbers, and writes docs/scale.md from them.

    python -m bench.scale                 everything: 100 seeds of each arm, about a minute
    python -m bench.scale --page          only the page, from the kept numbers
    python -m bench.scale --seeds 5 --out FILE    a try; writes no page

Nothing is measured here but the simulation's own speed: what it says is computed. Exit code 0; 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import scale_page
from bench.record import commit, hardware
from bench.scale_arms import ARMS, BEST, INPUTS, SPARES, WHOLE, Arm, fleet
from holdfast.config import ConfigError
from holdfast.config.failure_rates import FAILURE_RATES, LLAMA3_DAYS, LLAMA3_NODES
from holdfast.config.problems import EXIT_BAD_CONFIG, Problem
from holdfast.goodput.simulate import Fleet, Simulation, band, expected_goodput, simulate

SEEDS = 100
_PROMISED = (("1,024 nodes for 90 days, one seed", 2.0), ("16,384 GPUs for 54 days, 100 seeds", 60.0))
"""What is simulated, and in how many seconds it shall be."""
_CODE = ("holdfast/goodput", "holdfast/config", "bench/scale.py", "bench/scale_arms.py", "requirements.txt")


def simulate_all(seeds: int) -> dict[str, Any]:
    """The raw numbers of the page."""
    begun = time.perf_counter()
    arms, last_s = [], 0.0
    for arm in ARMS:
        started = time.perf_counter()
        arms.append(_arm(arm, seeds))
        last_s = time.perf_counter() - started
        print(f"{arm.name}: goodput {arms[-1]['goodput']['median']:.1%}, {last_s:.1f} s", flush=True)
    large = _speed()
    return {
        "schema": scale_page.SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(_CODE),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("numpy", "scipy")}},
        "seeds": seeds,
        "days": LLAMA3_DAYS,
        "spares": SPARES,
        "inputs": [asdict(one) for one in INPUTS.values()],
        "arms": arms,
        "whole": WHOLE,
        "best": BEST,
        "speed": [
            {"what": _PROMISED[0][0], "seconds": large, "promised_s": _PROMISED[0][1]},
            {"what": _PROMISED[1][0], "seconds": last_s * SEEDS / seeds, "promised_s": _PROMISED[1][1]},
        ],
        "wall_s": time.perf_counter() - begun,
    }


def _arm(arm: Arm, seeds: int) -> dict[str, Any]:
    runs = [simulate(arm.durations, fleet(arm), arm.policy, seed=seed, days=LLAMA3_DAYS) for seed in range(seeds)]
    expected = expected_goodput(arm.durations, fleet(arm), arm.policy)
    buckets = {name: sum(run.buckets[name] for run in runs) / seeds for name in runs[0].buckets}
    return {
        "name": arm.name,
        "intervals_steps": dict(arm.policy.intervals),
        "spares": arm.spares,
        "goodput": asdict(band(run.goodput for run in runs)),
        "expected_goodput": expected.number,
        "no_expectation": list(expected.outside),
        "unexpected": asdict(band(_count(run, planned=False) for run in runs)),
        "planned": asdict(band(_count(run, planned=True) for run in runs)),
        "by_kind": _by_kind(runs),
        "buckets_s": buckets,
    }


def _count(run: Simulation, *, planned: bool) -> int:
    return sum((one.kind == "planned") is planned for one in run.interruptions)


def _by_kind(runs: Sequence[Simulation]) -> dict[str, dict[str, Any]]:
    """Per kind: interruptions per run, the layers that overcame them, and the mean time until training went on."""
    found: dict[str, dict[str, Any]] = {}
    for one in (one for run in runs for one in run.interruptions):
        row = found.setdefault(one.kind, {"per_run": 0.0, "layers": {}, "recovered_s": 0.0})
        row["per_run"] += 1 / len(runs)
        row["layers"][one.layer] = row["layers"].get(one.layer, 0) + 1
        row["recovered_s"] += one.recovered_s or 0.0
    for row in found.values():
        row["recovered_s"] /= sum(row["layers"].values())
    return dict(sorted(found.items()))


def _speed() -> float:
    """Seconds for 1,024 nodes and 90 days."""
    arm = ARMS[BEST]
    started = time.perf_counter()
    run = simulate(
        arm.durations, Fleet.of(FAILURE_RATES["rsc1"], nodes=LLAMA3_NODES // 2, spares=SPARES), arm.policy, days=90
    )
    print(f"1,024 nodes, 90 days: goodput {run.goodput:.1%}", flush=True)
    return time.perf_counter() - started


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each arm (default: {SEEDS})")
    parser.add_argument("--out", type=Path, default=scale_page.KEPT, help="where the numbers are kept")
    parser.add_argument("--page", action="store_true", help="simulate nothing: make the page from what is kept")
    options = parser.parse_args()
    try:
        if options.seeds < 1:
            why = "a band needs runs"
            raise ConfigError([Problem("--seeds", options.seeds, why, "use 1 or more")])
        if not options.page:
            raw = simulate_all(options.seeds)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        if options.out.resolve() == scale_page.KEPT:
            scale_page.PAGE.write_text(scale_page.page(scale_page.read()), encoding="utf-8")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
