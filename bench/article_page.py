"""The published experiment and the cost of fault tolerance in the documents, from the kept results of bench.article and
bench.ft_cost. Where no GPU has tried the experiment, a CPU's is shown, and said to be one. The cost is shown from GPUs
only: two cores that also run the monitors say nothing about it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.demo import ROOT
from bench.recovery_page import SHARED

RESULTS = ROOT / "bench" / "results"
HARDWARE = ("h200x2", SHARED, "h200x1", "cpu")
"""Folders of results, the one to show first."""
ALONE = ("h200x2", "h200x1")
"""Those of GPUs that no other rank disturbs."""
COLUMNS = (
    "arm",
    "<goodput",
    "<with start-up",
    "<article's training",
    "<article's infra",
    "<wall s",
    "fault at step: seconds to the next step (steps lost; *: with the time between two calls)",
)
ARMS = {
    "pod-restart": "pod restart only",
    "in-process": "in process, else pod restart",
    "in-job": "in job, else pod restart",
    "all-on": "all layers",
}
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]
"""Columns and rows as Markdown."""


def faults(folder: Path, table: Table) -> str:
    """The arms of the published experiment. folder: of the document that says so."""
    path = kept("article_faults.json")
    if path is None:
        return "Not measured yet: `python -m bench.article` makes the numbers for this place."
    made = json.loads(path.read_text(encoding="utf-8"))
    rows = [_cells(row) for row in made["rows"]]
    steps = " and ".join(sorted({f"{row['steps']:,}" for row in made["rows"]}))
    near = f", one to the nodes every {made['local_save_every_steps']}" if made.get("local_save_every_steps") else ""
    what = (
        f"{steps} steps of at least {made['step_s']:g} s, a save every {made['save_every_steps']}{near}, and the same "
        f"{len(made['faults'])} faults in every arm, on {_where(made, path, folder)}."
    )
    text = " ".join(filter(None, [what, _only_tried(path), _not_run(made)]))
    return "\n\n".join([text, table(COLUMNS, rows)])


def cost(folder: Path) -> str:
    """What carrying all of it costs a step. folder: of the document that says so."""
    path = kept("ft_cost.json", ALONE)
    if path is None:
        return "Not measured yet: `python -m bench.ft_cost` on a machine with two GPUs makes the number for this place."
    made = json.loads(path.read_text(encoding="utf-8"))
    low, high = made["ci95"]
    noise = made["null_ci95"]
    apart = "" if noise is None else f" Two turns without anything differ by {noise[0]:.2%} to {noise[1]:.2%}."
    share, sizes = made["overhead_fraction"], f"{made['pairs']} pairs of turns, {made['steps']} steps on each side"
    return (
        f"Rank monitor, sections, wrapper, event log, looks at the store, and metrics cost {share:.2%} of a step of "
        f"{made['step_s']['off']:.3f} s (95 %: {low:.2%} to {high:.2%}; {sizes}), on {_where(made, path, folder)}."
        f"{apart}"
    )


def kept(name: str, hardware: Sequence[str] = HARDWARE) -> Path | None:
    """The result to show, of those from this hardware."""
    found = [RESULTS / folder / name for folder in hardware]
    return next((path for path in found if path.exists()), None)


def _where(made: dict[str, Any], path: Path, folder: Path) -> str:
    gpus: Sequence[str] = made["hardware"].get("gpus", [])
    machine = f"{len(gpus)} x {gpus[0]}" if gpus else f"{made['hardware']['cores']} CPU cores"
    machine += " that two ranks share" * (path.parent.name == SHARED)
    return f"{machine}, torch {made['versions']['torch']} ([raw numbers]({os.path.relpath(path, folder)}))"


def _only_tried(path: Path) -> str:
    if path.parent.name != "cpu":
        return ""
    return "This only tries the bench out; on GPUs it is not measured yet (`python -m bench.article --help` says how)."


def _not_run(made: dict[str, Any]) -> str:
    missing = [words for arm, words in ARMS.items() if all(row["arm"] != arm for row in made["rows"])]
    return f"Not run there: {'; '.join(missing)}." if missing else ""


def _cells(row: dict[str, Any]) -> list[str]:
    faults = ", ".join(
        f"{one['kind']} {one['step']}: never"
        if one["recovered_s"] is None
        else f"{one['kind']} {one['step']}: {one['recovered_s']:.1f}{'*' * one['calls_between']} ({one['lost_steps']})"
        for one in row["recoveries"]
    )
    shares = [row[name] for name in ("goodput", "goodput_total", "article_training_goodput", "article_infra_goodput")]
    return [ARMS[row["arm"]], *(f"{share:.1%}" for share in shares), f"{row['wall_s']:.0f}", faults]
