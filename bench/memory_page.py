"""Predicted and measured GPU memory in the documents, from the kept result of `python -m bench.memory` on GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.article_page import Table
from bench.demo import ROOT
from bench.memory_spec import SETTINGS
from holdfast.config.gpu_memory import CONTEXT_GIB, FRAGMENTS

KEPT = tuple(ROOT / "bench" / "results" / name / "memory.json" for name in ("h200x2", "h200x1"))
WHAT = {
    "none": "8 layers of Llama-3.1-8B, nothing computed again",
    "selective": "12 layers, 2 samples, selective",
    "full": "16 layers, 2 samples, full",
    "whole-logits": "4 layers, 2 samples, selective, whole logits",
    "accumulating": "8 layers, selective, 2 passes per step",
    "8b": "all 32 layers, selective",
    "masks": "4 layers, document masks",
    "gpt2": "GPT-2 with dropout, 16 samples",
    "compiled": "8 layers, compiled",
    "compiled-selective": "12 layers, compiled, selective",
}
ROOM = (
    "What is reserved, and so taken of the GPU, may be more than `holdfast check` wants: each stream of FSDP's keeps "
    "memory of its own as long as there is room, and without room gives it back (how often it had to: the throughput "
    "above)."
)
ONE_RANK = (
    "On one GPU nothing is gathered from others: the parts for that are compared with torch's memory tracker only."
)
MARGIN = (
    f"On top it wants {CONTEXT_GIB:g} GiB and {FRAGMENTS:.0%} of the tensors, for CUDA's context, NCCL, workspaces of "
    "matrix products, and what the allocator cannot use."
)
COLUMNS = (
    "setting",
    "<predicted GiB",
    "<measured GiB",
    "<off by",
    "<reserved GiB",
    "<taken of the GPU",
    "<check wants",
)


def memory(folder: Path, table: Table) -> str:
    """A table for each kept result, and what it means. folder: of the document that says so."""
    there = [path for path in KEPT if path.exists()]
    if not there:
        return f"{MARGIN} Not measured yet: `python -m bench.memory` on a machine with two GPUs makes the numbers."
    return "\n\n".join([MARGIN, *(_of_one(folder, table, path) for path in there)])


def _of_one(folder: Path, table: Table, path: Path) -> str:
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in made["rows"] if row.get("error_fraction") is not None]
    good = sum(abs(row["error_fraction"]) <= made["goal"] for row in rows)
    where = f"{made['gpus']} x {rows[0]['gpu']}, torch {rows[0]['torch']}, commit {made['commit']}"
    failed = [f"{row['setting']}: {row['error']}" for row in made["rows"] if "error" in row]
    failed += [f"{WHAT[name]} (not tried)" for name in SETTINGS if name not in {row["setting"] for row in made["rows"]}]
    return "\n\n".join(
        [
            f"Of {len(rows)} settings {good} are predicted within {made['goal']:.0%} of the most that torch's "
            f"tensors took on any rank; the largest error is {made['largest_error_fraction']:.1%}. Sequences of 8,192 "
            f"tokens and one sample per rank where nothing else is said, output layer and loss in pieces, {where} "
            f"([raw numbers]({os.path.relpath(path, folder)})).",
            table(COLUMNS, [_cells(row) for row in rows]),
            ROOM,
            *([ONE_RANK] if made["gpus"] == 1 else []),
            *([f"Not measured: {'; '.join(failed)}."] if failed else []),
        ]
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        WHAT[row["setting"]],
        f"{row['predicted_gib']:.1f}",
        f"{row['measured_allocated_gib']:.1f}",
        f"{row['error_fraction']:+.1%}",
        f"{row['measured_reserved_gib']:.1f}",
        f"{row['measured_used_gib']:.1f}",
        f"{row['needed_gib']:.1f}",
    ]
