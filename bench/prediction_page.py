"""The sentence on how far predictions of goodput are off, from the kept result of `python -m bench.prediction`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench.demo import ROOT
from bench.node_recovery_page import measured_on

PREDICTION = ROOT / "bench" / "results" / "cpu" / "prediction.json"


def predicted(folder: Path) -> str:
    """How far predictions of goodput are off. folder: of the document that says so."""
    if not PREDICTION.exists():
        return "Not measured yet: `python -m bench.prediction --fresh` makes the numbers for this place."
    made: dict[str, Any] = json.loads(PREDICTION.read_text(encoding="utf-8"))
    apart = [abs(row["predicted"] - row["measured"]) for row in made["rows"]]
    measured = [row["measured"] for row in made["rows"]]
    faults = {len(run["faults"]) for run in made["runs"]}
    return (
        f"Durations calibrated on one run predict another one with another seed, another interval and other faults, "
        f"given when and how that one was broken: {len(apart)} pairs of {len(made['runs'])} runs with "
        f"{' or '.join(map(str, sorted(faults)))} faults each, whose goodput was {min(measured):.1%} to "
        f"{max(measured):.1%}. Off by {100 * statistics.median(apart):.2f} points in the median, "
        f"{100 * max(apart):.2f} at most; allowed is {100 * made['limit']:.0f}, "
        f"{measured_on(made, PREDICTION, folder)}. No runs on GPUs are kept yet to do the same with."
    )
