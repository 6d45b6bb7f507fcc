"""The article's checkpoint experiment in the documents, from the kept result of bench.save_efficiency, and the
article's cluster as the planner computes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.article_page import Table
from bench.demo import ROOT
from bench.save_efficiency_projection import projection
from bench.save_efficiency_spec import WAYS

KEPT = ROOT / "bench" / "results" / "h200x2" / "save_efficiency.json"
COLUMNS = (
    "arm", "<efficiency, the article's way", "<with the last save", "<at an interval of {at:,} (computed)",
    "<blocked by each save", "<wait at the end",
)  # fmt: skip
NOT_YET = (
    "Not measured yet: `python -m bench.save_efficiency --hardware h200x2` on a machine with two GPUs makes the "
    "numbers for this place."
)
MEANS = (
    "The article's way divides by the wall time what is left of it without the save calls: neither the wait for the "
    "last save nor steps that a write slows down are in it. The second number has both: so many quiet steps by the "
    "wall time until the last save is durable. The third was not measured; it is computed from what the second save "
    "and the steps after it cost."
)


def checkpoints(folder: Path, table: Table) -> str:
    """The table, and what the planner computes for the article's cluster."""
    return f"{save_efficiency(folder, table)}\n\n{projection(table)}"


def save_efficiency(folder: Path, table: Table, path: Path = KEPT) -> str:
    """The table. folder: of the document that says so."""
    if not path.exists():
        return NOT_YET
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    columns = [column.format(at=result["computed_at"]) for column in COLUMNS]
    wrong = [row["arm"] for row in result["rows"] if row.get("content_is_right") is False]
    parts = [_source(result, path, folder), table(columns, [_cells(row) for row in result["rows"]]), MEANS]
    return "\n\n".join(parts + [f"Not what had been saved was read back: {', '.join(wrong)}."] * bool(wrong))


def _source(result: Mapping[str, Any], path: Path, folder: Path) -> str:
    hardware, versions, gpus = result["hardware"], result["versions"], result["hardware"]["gpus"]
    machine = f"{len(gpus)} x {gpus[0]}" if gpus else f"{hardware.get('cores', '?')} CPU cores, which only tries it out"
    size = f"{result['model']['parameters'] / 1e9:.2f} billion parameters under FSDP2"
    measured = f"torch {versions.get('torch', '?')}, NVRx {versions.get('nvidia-resiliency-ext', '?')}"
    return (
        f"{result['steps']} steps with a save after every {result['every']}th, the last one after the last step, on "
        f"{machine}, {measured}, commit {result['commit'] or '?'} ([raw numbers]({os.path.relpath(path, folder)})). "
        f"{size}, {result['shard_bytes'] / 1e9:.1f} GB of state on each rank, fsynced to "
        f"{result['target'].get('file_system', '?')}."
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    words = WAYS[row["arm"]].words
    if "wall_s" not in row:
        why = " ".join(str(row.get("skipped") or row.get("error")).split())[:120]
        return [f"{words}: {why}", *[""] * (len(COLUMNS) - 1)]
    computed = row["efficiency_at_1000_computed"]
    return [
        words,
        f"{row['efficiency_article']:.1%}",
        f"**{row['efficiency']:.1%}**",
        "-" if computed is None else f"{computed:.1%}",
        ", ".join(_seconds(call) for call in row["blocked_s"]),
        _seconds(row["drain_s"]),
    ]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
