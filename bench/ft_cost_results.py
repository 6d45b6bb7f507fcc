"""What bench.ft_cost makes of its turns: each turn of the one side against the other side's beside it."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from rich.console import Console

from bench.article_rows import machine
from bench.checkpoint_results import interval
from bench.ft_cost_spec import OFF, ON, SIDES
from holdfast.config import RunConfig

SCHEMA = 1
CODE = (
    "holdfast",
    "trainer",
    "bench/arms/ft_cost_rank.py",
    "bench/arms/silent.py",
    *(f"bench/ft_cost{part}.py" for part in ("", "_processes", "_results", "_spec")),
)
"""What must not differ from the commit for the numbers to be its numbers."""
LEAD_IN = 2
"""Pairs of each start that do not count: allocators and clocks of the machine are still finding their way."""
ABOUT = (
    "Steps without a fault and without a save, by turns with and without all that a run carries for its fault "
    "tolerance. overhead_fraction: median over pairs of turns of (seconds on / seconds off) - 1, with a bootstrap "
    "interval of 95 %. null_fraction: the same of turns that are off against the next such turn, so what the machine "
    "alone differs by. cpu_: processor time of a rank's process, its threads included, which a machine with other work "
    "falsifies less. Not in it: supervisors and control pod, whose processes are others'; saves (checkpoint.json)."
)
CPU = (
    " On a CPU all processes share the cores, those of the waiting side too, and the model is small: this tries the "
    "bench out, and says nothing about a GPU."
)


@dataclass(frozen=True)
class Pair:
    """Two turns beside each other. By side: seconds of one step of rank 0, mean over the turn; cpu: processor time."""

    run: str
    number: int
    step_s: Mapping[str, float]
    cpu_s: Mapping[str, float]
    steps: int


def pairs_of(lines: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Complete pairs of all starts but their first ones."""
    turns: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for line in lines:
        if line.get("kind") == "turn":
            turns[line["run"], line["turn"] // 2][line["side"]] = line
    return [
        Pair(run, number, _per_step(sides, "seconds"), _per_step(sides, "cpu_s"), sides[ON]["steps"])
        for (run, number), sides in sorted(turns.items())
        if number >= LEAD_IN and len(sides) == 2
    ]


def _per_step(sides: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, float]:
    return {side: sides[side][what] / sides[side]["steps"] for side in SIDES}


def result(pairs: Sequence[Pair], config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """The kept file."""
    costs = [_share(pair.step_s) for pair in pairs]
    cpu_costs = [_share(pair.cpu_s) for pair in pairs]
    nulls = [
        after.step_s[OFF] / before.step_s[OFF] - 1
        for before, after in pairwise(pairs)
        if (before.run, before.number + 1) == (after.run, after.number)
    ]
    return {
        "schema": SCHEMA,
        "about": ABOUT + CPU * (config.device == "cpu"),
        **machine(config),
        "commit": arguments.commit,
        "profile": arguments.profile,
        "overrides": list(arguments.overrides),
        "ranks": config.world_size,
        "pairs": len(pairs),
        "steps": sum(pair.steps for pair in pairs),
        "overhead_fraction": median(costs),
        "ci95": list(interval(costs)),
        "overhead_s": median(pair.step_s[ON] - pair.step_s[OFF] for pair in pairs),
        "step_s": {side: median(pair.step_s[side] for pair in pairs) for side in SIDES},
        "cpu_overhead_fraction": median(cpu_costs),
        "cpu_ci95": list(interval(cpu_costs)),
        "cpu_step_s": {side: median(pair.cpu_s[side] for pair in pairs) for side in SIDES},
        "null_fraction": median(nulls) if nulls else None,
        "null_ci95": list(interval(nulls)) if nulls else None,
        "load": round(os.getloadavg()[2], 1),
        "each": [{"step_s": pair.step_s, "cpu_s": pair.cpu_s} for pair in pairs],
    }


def _share(seconds: Mapping[str, float]) -> float:
    return seconds[ON] / seconds[OFF] - 1


def show(made: Mapping[str, Any], console: Console) -> None:
    """One sentence."""
    low, high = made["ci95"]
    console.print(
        f"{made['pairs']} pairs, {made['steps']} steps of {made['step_s'][OFF]:.4f} s on each side: carrying all of it "
        f"costs {made['overhead_fraction']:.2%} of a step (95 %: {low:.2%} to {high:.2%}), "
        f"{1000 * made['overhead_s']:.2f} ms"
    )
    low, high = made["cpu_ci95"]
    console.print(f"of processor time: {made['cpu_overhead_fraction']:.2%} ({low:.2%} to {high:.2%})")
    if made["null_fraction"] is not None:
        low, high = made["null_ci95"]
        console.print(
            f"turns that are off, one against the next: {made['null_fraction']:.2%} ({low:.2%} to {high:.2%})"
        )
