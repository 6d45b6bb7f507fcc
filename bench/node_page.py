"""The table on lost nodes and lost control pods, and the sentence on predictions, from the kept results of
`python -m bench.node_recovery` and `python -m bench.prediction`."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.demo import ROOT

NODE = ROOT / "bench" / "results" / "cpu" / "node_recovery.json"
PREDICTION = ROOT / "bench" / "results" / "cpu" / "prediction.json"
WORDS = {"node_loss": "a node with all its ranks vanishes", "control_loss": "the control pod vanishes"}
COLUMNS = ("fault", "<recoveries", "<median", "<least to most", "<goal", "<steps lost", "where the time goes")
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]
"""Columns and rows as Markdown."""


def lost_nodes(folder: Path, table: Table) -> str:
    """Seconds from the loss to the end of the next step. folder: of the document that says so."""
    if not NODE.exists():
        return "Not measured yet: `python -m bench.node_recovery` makes the numbers for this place."
    made: dict[str, Any] = json.loads(NODE.read_text(encoding="utf-8"))
    rows = [_cells(row) for row in made["rows"]]
    return f"From the loss to the end of the next step, {_where(made, NODE, folder)}.\n\n{table(COLUMNS, rows)}"


def _cells(row: dict[str, Any]) -> list[str]:
    seconds = row["recovered_s"]
    parts = [f"{name} {took:.1f} s" for name, took in row["breakdown_s"].items() if (took or 0) >= 0.05]
    return [
        WORDS[row["fault"]],
        str(row["n"]),
        f"{row['median_s']:.1f} s",
        f"{min(seconds):.1f} to {max(seconds):.1f} s",
        f"{row['goal_s']:g} s",
        f"{statistics.median(row['lost_steps']):g}",
        ", ".join(parts),
    ]


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
        f"{100 * max(apart):.2f} at most; allowed is {100 * made['limit']:.0f}, {_where(made, PREDICTION, folder)}. "
        "No runs on GPUs are kept yet to do the same with."
    )


def _where(made: dict[str, Any], path: Path, folder: Path) -> str:
    return (
        f"on {made['hardware']['cores']} CPU cores, torch {made['versions']['torch']}, commit {made['commit']} "
        f"([raw numbers]({os.path.relpath(path, folder)}))"
    )
