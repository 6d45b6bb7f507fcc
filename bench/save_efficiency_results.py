"""From the raw lines of bench.save_efficiency to its result: the part of a run that is training, computed twice.

The article divides the time outside of its save calls by the wall time; the wait for the last save is in the wall time
and in no save call, and what a write slows the steps beside it down by is in none either. `efficiency` asks instead how
long the same steps take when nothing is saved: steps x quiet step / wall time, until the last save is durable. Quiet
steps are those before the first save.

At another interval nothing was measured: cost is what a save and the steps until the next one took longer than quiet
steps, of the last save that has such steps behind it; interval x quiet step / (that + cost) is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gathering import with_numbers
from bench.save_efficiency_spec import WAYS, Order

Line = Mapping[str, Any]
SCHEMA = 1
COMPUTED_AT = 1000
"""Steps: the article's interval."""
SETTLING = 0.1
"""Part of the steps before the first save that does not count as quiet."""


def alike(lines: Sequence[Line], order: Order) -> list[Line]:
    """Those of the order's sizes: what was tried out on a CPU, in fewer steps or on another model is something else."""
    return [line for line in lines if order.sizes.items() <= line.items()]


def finished(lines: Sequence[Line]) -> set[str]:
    """Rows that need not be measured again. lines: alike."""
    return {line["method"] for line in lines if line["kind"] == "arm"}


def calibration(lines: Sequence[Line]) -> Line | None:
    """The batch of all arms. lines: alike."""
    return next((line for line in lines if line["kind"] == "calibration"), None)


def unfinished(names: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """Those that a further call would run, if it is on a machine like this one. lines: alike."""
    last = {line["method"]: line["kind"] for line in lines}
    return [name for name in names if name not in finished(lines) and last.get(name) != "skipped"]


def fold(lines: Sequence[Line]) -> dict[str, Any]:
    """The kept file. lines: alike."""
    runs = {line["run"]: line for line in lines if line["kind"] == "run"}
    arms = [line for line in lines if line["kind"] == "arm"]
    last = arms[-1] if arms else None
    machine: Line = runs[last["run"]] if last else {"hardware": {}, "target": {}, "steps": 0, "every": 0, "model": {}}
    return {
        "schema": SCHEMA,
        "about": " ".join((__doc__ or "").split()),
        "hardware": {**machine["hardware"], "gpus": last["gpus"] if last else []},
        "versions": last["versions"] if last else {},
        "commit": ", ".join(sorted({runs[line["run"]]["commit"] for line in arms})),
        "target": machine["target"],
        "steps": machine["steps"],
        "every": machine["every"],
        "computed_at": COMPUTED_AT,
        "model": {**machine["model"], "parameters": last["parameters"] if last else 0},
        "shard_bytes": last["shard_bytes"] if last else 0,
        "rows": [row for name in WAYS if (row := _row(name, lines, runs)) is not None],
    }


def _row(name: str, lines: Sequence[Line], runs: Mapping[str, Line]) -> dict[str, Any] | None:
    mine = [line for line in lines if line.get("method") == name]
    arm = next((line for line in reversed(mine) if line["kind"] == "arm"), None)
    if arm is not None:
        return {"arm": name, **numbers(arm, runs[arm["run"]]["every"])}
    failed = [line["error"] for line in mine if line["kind"] == "failed"]
    skipped = [line["reason"] for line in mine if line["kind"] == "skipped"]
    if failed:
        return {"arm": name, "error": failed[-1]}
    return {"arm": name, "skipped": skipped[-1]} if skipped else None


def numbers(arm: Line, every: int) -> dict[str, Any]:
    """Of one arm. every: steps between two saves, the first one after as many."""
    steps, wall_s = arm["steps_s"], arm["wall_s"]
    quiet = fmean(steps[round(SETTLING * every) : every - 1])
    windows = [steps[start : start + every] for start in range(every - 1, len(steps) - every, every)]
    costs = [sum(window) - every * quiet for window in windows]
    cost = max(0.0, costs[-1]) if costs else None
    return {
        "steps": len(steps),
        "saves": len(arm["calls_s"]),
        "quiet_step_s": quiet,
        "blocked_s": arm["calls_s"],
        "drain_s": arm["drain_s"],
        "wall_s": wall_s,
        "efficiency_article": 1.0 - sum(arm["calls_s"]) / wall_s,
        "efficiency": len(steps) * quiet / wall_s,
        "costs_s": costs,
        "efficiency_at_1000_computed": None if cost is None else COMPUTED_AT * quiet / (COMPUTED_AT * quiet + cost),
        "content_is_right": arm["content_is_right"],
    }


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the rows."""
    table = Table(
        "arm", "article", "with drain", f"at {COMPUTED_AT} (computed)", "blocked s", "drain s", "step s", "right"
    )
    for row in with_numbers(result["rows"], "arm", "wall_s", console):
        computed = row["efficiency_at_1000_computed"]
        table.add_row(
            row["arm"],
            f"{row['efficiency_article']:.2%}",
            f"{row['efficiency']:.2%}",
            "-" if computed is None else f"{computed:.2%}",
            ", ".join(f"{call:.2f}" for call in row["blocked_s"]),
            f"{row['drain_s']:.2f}",
            f"{row['quiet_step_s']:.4f}",
            str(row["content_is_right"]),
        )
    console.print(table)
