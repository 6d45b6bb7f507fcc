"""Seconds from a fault to the next step in the documents, from the kept results of bench.recovery. A CPU's are shown
where no GPU has any."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.demo import ROOT
from holdfast.config import load_profile
from holdfast.config.sizing import checkpoint_bytes, parameters

RESULTS = ROOT / "bench" / "results"
SHARED = "h200x1_shared"
MACHINES = {"h200x2": "2 x H200", SHARED: "one H200 that two ranks share"}
"""Folder of results -> what it was, the one to show first."""
GOALS_S = {"exception": 3.0, "nccl_hang": 6.0, "sigkill": 8.0}
"""What is aimed at on two GPUs, and so on one that is shared."""
WORDS = {
    "exception": "a rank raises",
    "nccl_hang": "a rank leaves a collective waiting",
    "hang": "a rank leaves a collective waiting",
    "sigkill": "a rank is killed",
}
ARMS = {
    "holdfast": "**Holdfast**",
    "no-standby": "without standby interpreters",
    "stock-pauses": "also with the pauses of NVRx",
    "nvrx-defaults": "NVRx's defaults",
}
LAYERS = {"in_process": "in process", "in_job": "in job"}
COLUMNS = (
    "fault", "what is on", "cured", "<recoveries", "<median", "<least to most", "<goal", "where the time goes",
)  # fmt: skip
WHILE_SHARED = (
    "The two ranks are two nodes of the local runner, and NCCL goes between them over TCP, for lack of a second GPU: "
    "`CUDA_VISIBLE_DEVICES=0,0 python -m bench.recovery --profile gpu-local --set cluster.nodes=2 --hardware "
    "h200x1_shared --raw /dev/shm/recovery/lines.jsonl --arms holdfast --count 5 --per-job 5`, and `--arms "
    "nvrx-defaults --count 1` after it. The GPU goes from one process to the other and back, so that a step, and with "
    "it the first one after a restart, takes longer than with a GPU for each. Waits, aborts and restarts are those of "
    "two ranks."
)
SMALL_S = 0.05
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]
"""Columns and rows as Markdown."""


def recoveries(folder: Path, table: Table, results: Path = RESULTS) -> str:
    """A table for each machine. folder: of the document that says so."""
    found = [results / name / "recovery.json" for name in MACHINES]
    there = [path for path in found if path.exists()] or [results / "cpu" / "recovery.json"]
    parts = [_of_one(folder, table, path) for path in there if path.exists()]
    if found[0] not in there:
        parts.append(
            "Not measured on two GPUs: `python -m bench.recovery --profile gpu-local --set cluster.ranks_per_node=2 "
            "--hardware h200x2 --deadline 560`."
        )
    return "\n\n".join(parts)


def headline(folder: Path, results: Path = RESULTS) -> str:
    """Medians of ours, of the GPUs to show first; nothing if there are none. folder: of the document that says so."""
    path = next((path for name in MACHINES if (path := results / name / "recovery.json").exists()), None)
    if path is None:
        return ""
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    ours = {row["fault"]: row for row in made["rows"] if row["arm"] == "holdfast"}
    said = ", ".join(
        f"{ours[fault]['median_s']:.1f} s after {words} ({LAYERS.get(ours[fault]['layer'], ours[fault]['layer'])}"
        f"{f'; goal {GOALS_S[fault]:g} s' if fault in GOALS_S else ''})"
        for fault, words in WORDS.items()
        if fault in ours
    )
    page = os.path.relpath(RESULTS.parents[1] / "docs" / "results.md", folder)
    return (
        f"On {MACHINES[path.parent.name]}, {_job(made)}, the next step is finished {said}: medians, "
        f"[with their parts]({page})."
    )


def _job(made: Mapping[str, Any]) -> str:
    """The model and its state."""
    config = load_profile(made["profile"], list(made["overrides"]))
    count, size = parameters(config.model), checkpoint_bytes(config)
    return f"with {count / 1e6:,.0f} million parameters and {size / 1e9:.1f} GB of state"


def _of_one(folder: Path, table: Table, path: Path) -> str:
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    name = path.parent.name
    machine = MACHINES.get(name, f"{made['hardware']['cores']} CPU cores")
    versions, link = made["versions"], os.path.relpath(path, folder)
    said = (
        f"From the fault to the end of the next finished step on {machine}, {_job(made)}, torch {versions['torch']}, "
        f"NVRx {versions['nvidia-resiliency-ext']}, commit {made['commit']} ([raw numbers]({link}))."
    )
    rows = sorted(made["rows"], key=lambda row: (list(WORDS).index(row["fault"]), list(ARMS).index(row["arm"])))
    shared = [WHILE_SHARED] if name == SHARED else []
    return "\n\n".join([said, *shared, table(COLUMNS, [_cells(row, name) for row in rows])])


def _cells(row: Mapping[str, Any], on: str) -> list[str]:
    """on: folder of the result."""
    each: Sequence[float] = row["all_s"]
    goal = GOALS_S.get(row["fault"]) if row["arm"] == "holdfast" and on in MACHINES else None
    parts = [
        f"{name.replace('_', ' ')} {took:.1f} s" for name, took in row["breakdown_s"].items() if (took or 0) >= SMALL_S
    ]
    return [
        WORDS[row["fault"]],
        ARMS[row["arm"]],
        LAYERS.get(row["layer"], row["layer"]),
        str(row["n"]),
        f"{row['median_s']:.1f} s",
        f"{min(each):.1f} to {max(each):.1f} s",
        "" if goal is None else f"{goal:g} s",
        ", ".join(parts),
    ]
