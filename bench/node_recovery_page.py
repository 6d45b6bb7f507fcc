"""The table on lost nodes and lost control pods, from the kept result of `python -m bench.node_recovery`."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.demo import ROOT

NODE = ROOT / "bench" / "results" / "cpu" / "node_recovery.json"
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
    return f"From the loss to the end of the next step, {measured_on(made, NODE, folder)}.\n\n{table(COLUMNS, rows)}"


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


def measured_on(made: dict[str, Any], path: Path, folder: Path) -> str:
    """Machine, version and commit of a result, with a link. folder: of the document that says so."""
    return (
        f"on {made['hardware']['cores']} CPU cores, torch {made['versions']['torch']}, commit {made['commit']} "
        f"([raw numbers]({os.path.relpath(path, folder)}))"
    )
