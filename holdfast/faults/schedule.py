"""Random schedules of faults: the same seed gives the same schedule."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from holdfast.config.failure_rates import failure_rate
from holdfast.config.fault_catalogue import Row, catalogue
from holdfast.config.faults import OF_A_SAVE, OF_AN_ATTEMPT, Fault
from holdfast.faults.expected import Detected, Expected, expected

__all__ = ["DRAWN", "Detected", "Expected", "draw", "expected", "mtbf_steps"]

DAY_S = 86_400.0
MOST = 4
"""Faults of a schedule whose number is not given."""
AT_ONCE = 0.25
"""Chance that a fault takes the step of the one before. Never three: the third would meet recovery.same_step_limit."""
BEFORE_THE_END = 4
"""The local runner learns of a step when it has ended; what it does in the last ones could come too late."""
_TOO_LONG = ("dns_failure",)
"""Possible, but a rank asks for two minutes before it gives up."""


def drawn() -> tuple[str, ...]:
    """Kinds that `draw` uses unless it is told others: those that run on a CPU and end bit-equal."""
    return tuple(
        kind
        for kind, entry in catalogue().entries.items()
        if entry.device != "cuda" and kind not in _TOO_LONG and any(_fair(row) for row in entry.rows.values())
    )


def _fair(row: Row) -> bool:
    return not row.refused and row.end == "bit_equal"


DRAWN = drawn()
"""Kinds that `draw` uses unless it is told others."""


def draw(
    seed: int,
    *,
    nodes: int,
    ranks_per_node: int,
    steps: int,
    count: int | None = None,
    mtbf_steps: float | None = None,
    kinds: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """A schedule, in order of its steps; each entry is one of `faults:` in a config.

    count: how many; mtbf_steps instead: mean steps between two of them, exponential, so that there may be none.
    Neither: 1 to 4. Two may strike at one step. kinds: only these. Raises ValueError for sizes below 1, both count and
    mtbf_steps, or a kind that cannot be drawn.
    """
    rows = _rows(DRAWN if kinds is None else kinds)
    if min(nodes, ranks_per_node, steps) < 1 or (count is not None and mtbf_steps is not None):
        raise ValueError("nodes, ranks_per_node and steps are 1 or more, and only one of count, mtbf_steps is given")
    chance = random.Random(f"holdfast faults {seed}")
    found: list[dict[str, Any]] = []
    for step in _steps(chance, steps, count, mtbf_steps):
        for _ in range(20):  # a fault that is there already, or does not go with it, is drawn again
            one = _one(chance, rows, step, steps, nodes * ranks_per_node)
            if _goes_with(one, found):
                found.append(one)
                break
    ends = any(catalogue().entries[fault["kind"]].ends == "attempt" and fault["phase"] != "restore" for fault in found)
    for fault in found:
        if fault["phase"] == "restore":
            fault["step"] = 2 if ends else 1  # in the attempt that follows another fault, where one does
    distinct = {Fault.model_validate(fault).id: fault for fault in found}
    return sorted(distinct.values(), key=lambda fault: int(fault["step"]))


def mtbf_steps(rate: str, *, nodes: int, step_s: float) -> float:
    """Mean steps between failures of a job of so many nodes whose steps take step_s seconds, by a failure-rate preset
    (holdfast/config/failure_rates.py) or a number of failures per 1,000 node-days. Infinite without failures. Raises
    ConfigError for an unknown preset.
    """
    found = failure_rate(rate)
    per_day = found.hardware_per_node_day * nodes + found.software_per_job_day
    return DAY_S / per_day / step_s if per_day > 0 else float("inf")


def _rows(kinds: Sequence[str]) -> list[list[Row]]:
    """The rows of each kind that end bit-equal; of a kind without any, all that are allowed."""
    unknown = [kind for kind in kinds if kind not in catalogue().entries]
    if unknown or not kinds:
        raise ValueError(f"no such kind of fault: {', '.join(unknown) or 'none is given'}")
    found = []
    for kind, entry in catalogue().entries.items():
        if kind in kinds:
            allowed = [row for row in entry.rows.values() if not row.refused]
            found.append([row for row in allowed if _fair(row)] or allowed)
    return found


def _steps(chance: random.Random, steps: int, count: int | None, mtbf: float | None) -> list[int]:
    """The steps at which something strikes, ascending; at most two of them are the same."""
    if mtbf is not None:
        if not mtbf > 0:
            raise ValueError(f"mtbf_steps={mtbf:g}: the mean number of steps between faults is above 0")
        if mtbf == math.inf:
            return []
        found, at = [], chance.expovariate(1.0 / mtbf)
        while at < steps:
            found.append(1 + int(at))
            at += chance.expovariate(1.0 / mtbf)
        return sorted(step for step in set(found) for _ in range(min(2, found.count(step))))
    number = min(chance.randint(1, MOST) if count is None else count, 2 * steps)
    found = []
    while len(found) < number:
        step = found[-1] if found and chance.random() < AT_ONCE else chance.randint(min(2, steps), steps)
        if found.count(step) < 2:
            found.append(step)
        elif 2 * (steps - min(2, steps) + 1) <= len(found):
            break  # every step has two
    return sorted(found)


def _one(chance: random.Random, rows: list[list[Row]], step: int, steps: int, ranks: int) -> dict[str, Any]:
    row = chance.choice(chance.choice(rows))
    fault: dict[str, Any] = {"kind": row.kind, "phase": row.phase, "step": step, "rank": chance.randrange(ranks)}
    if row.phase in OF_AN_ATTEMPT:
        fault["step"] = 1
    if row.kind == "control_loss" or (
        row.phase == "commit" and row.kind in ("slow_disk", "readonly_disk", "writer_death")
    ):
        fault["rank"] = 0
    if row.kind in ("sigterm_short_grace", "node_loss", "control_loss"):
        fault["step"] = max(1, min(step, steps - BEFORE_THE_END))
    if row.kind == "slow_rank":
        fault |= {"for_steps": chance.randint(2, 8), "factor": round(chance.uniform(1.5, 4.0), 1)}
    if row.kind == "clock_jump":
        fault["for_s"] = 3600
    if row.kind in ("rank_sigstop", "slow_disk", "sigterm_short_grace"):
        fault["for_s"] = round(chance.uniform(0.2, 2.0), 1)
    return fault


def _goes_with(fault: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Whether the end of the whole stays certain. Two damaged checkpoints could be all that there are."""
    if fault["kind"] == "bit_flip_stored" and any(other["kind"] == fault["kind"] for other in others):
        return False
    if fault["phase"] in OF_AN_ATTEMPT and sum(other["phase"] in OF_AN_ATTEMPT for other in others) >= 2:
        return False  # they strike at the same place
    if fault["phase"] in OF_A_SAVE and sum(other["phase"] in OF_A_SAVE for other in others) >= 2:
        return False  # in one save, perhaps
    return Fault.model_validate(fault).id not in {Fault.model_validate(other).id for other in others}
