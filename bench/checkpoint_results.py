"""From the raw lines of the checkpoint bench to its result: medians and their 95 % intervals.

The baseline of a save is the mean of all steps of its arm beside which nothing was saved; blocks of them lie between
the saves. Everything that the step of the save took longer is `blocked`; everything that the steps after it took
longer, until the write was over, is `hidden`. `null` is the same sum over as many steps in which nothing was saved:
what the method makes of mere noise. The mean and not the median: hidden is a sum of a dozen steps, and the sum of steps
that differ by chance has a dozen means as its expectation; and of all blocks, not of the two beside a save: their error
would enter the sum a dozen times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.checkpoint_spec import CALIBRATE, METHODS, MICRO_BATCH, PROFILE, WRITE

Line = dict[str, Any]
DRAWS = 10_000
SEED = 4


@dataclass
class MethodLines:
    """What one run of one arm has left."""

    ready_at: float | None = None
    saves: list[Line] = field(default_factory=list)
    end: Line | None = None
    memory: Line | None = None
    skipped: str | None = None
    error: str | None = None


class Raw:
    """The lines of one or more raw files, by method and run."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.calibration: Line | None = None
        self.write: Line | None = None
        self.profile: Line | None = None
        self.runs: list[Line] = []
        self.by_method: dict[str, dict[str, MethodLines]] = {}
        for line in lines:
            self._take(line)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Raw:
        """All lines that are whole; a killed process may have torn the last."""
        lines = []
        for path in paths:
            for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    continue
        return cls(lines)

    def _take(self, line: Line) -> None:
        kind, name = line["kind"], line["method"]
        if kind == "calibration":
            self.calibration = line
        elif kind == "write":
            self.write = line
        elif kind == "profile":
            self.profile = line
        elif kind == "run":
            self.runs.append(line)
        elif name:
            self._of_method(line, self.by_method.setdefault(name, {}).setdefault(line["run"], MethodLines()))

    def _of_method(self, line: Line, found: MethodLines) -> None:
        match line["kind"]:
            case "ready":
                found.ready_at = line["at"]
            case "save":
                found.saves.append(line)
            case "arm":
                found.end = line
            case "memory":
                found.memory = line
            case "skipped":
                found.skipped = line["reason"]
            case "failed":
                found.error = line["error"]

    @property
    def finished(self) -> set[str]:
        """Methods that need not run again."""
        done = {name for name, runs in self.by_method.items() if any(run.end or run.skipped for run in runs.values())}
        return done | ({WRITE} if self.write else set()) | ({PROFILE} if self.profile else set())

    def best(self, name: str) -> tuple[str, MethodLines]:
        """The run of a method that got furthest, and what it left."""
        return max(self.by_method[name].items(), key=lambda one: (one[1].end is not None, len(one[1].saves)))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of the median. Seeded: the same values give the same interval."""
    generator = np.random.default_rng(SEED)
    sample = np.asarray(values, dtype=float)
    medians = np.median(sample[generator.integers(0, len(sample), (DRAWS, len(sample)))], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def costs(save: Line, base: float) -> tuple[float, float]:
    """Seconds blocked and hidden of one save. base: of a step without one."""
    first, *rest = save["window"]
    return first - base, sum(step - base for step in rest)


def quiet_steps(saves: Sequence[Line]) -> list[float]:
    """All steps beside which nothing was saved. The block behind a save is the one before the next."""
    return [*saves[0]["before"], *(step for save in saves for step in save["after"])]


def null_costs(saves: Sequence[Line]) -> list[float]:
    """What the same sums give for steps without a save: windows of the usual length, each against all other steps."""
    steps = quiet_steps(saves)
    length = max(1, round(float(np.median([len(save["window"]) for save in saves]))))
    found = []
    for start in range(0, len(steps) - length + 1, length):
        others = steps[:start] + steps[start + length :]
        if others:
            found.append(sum(steps[start : start + length]) - length * float(np.mean(others)))
    return found


def row(name: str, lines: MethodLines, calibration: Line, world: int) -> Line:
    """One method's row of the result."""
    if lines.skipped:
        return {"method": name, "skipped": lines.skipped}
    method = METHODS[name]
    saves = sorted(lines.saves, key=lambda save: int(save["index"]))
    counted = saves if method.first_counts else saves[1:]
    if not counted:
        return {"method": name, "error": lines.error or "it left no save"}
    base = float(np.mean(quiet_steps(saves)))
    each = [costs(save, base) for save in counted]
    blocked, hidden = [pair[0] for pair in each], [pair[1] for pair in each]
    total = [sum(pair) for pair in each]
    nulls = null_costs(counted)
    made: Line = {
        "method": name,
        "saves": len(counted),
        "step_s": base,
        "step_spread_s": float(np.std(quiet_steps(saves))),
        "blocked_s": _median(blocked),
        "hidden_s": _median(hidden),
        "total_s": _median(total),
        "total_ci95_s": interval(total),
        "total_worst_s": max(total),
        "blocked_ci95_s": interval(blocked),
        "first_blocked_s": costs(saves[0], base)[0],
        "first_total_s": sum(costs(saves[0], base)),
        **_profile(counted, base),
        "background_s": _median([save["durable_s"] for save in counted]),
        "null_s": _median(nulls) if nulls else None,
        "null_ci95_s": interval(nulls) if nulls else None,
        **_memory(lines, world),
        "content_is_right": lines.end["content_is_right"] if lines.end else None,
        "each": [
            {"blocked_s": pair[0], "hidden_s": pair[1]} | {key: save[key] for key in ("window", "before", "after")}
            for pair, save in zip(each, counted, strict=True)
        ],
    }
    if method.step == "short":
        made["bound_s"] = max(0.0, calibration["copy_s"] - made["gradients_s"])
    if not lines.end:
        made["incomplete"] = lines.error or "its end was not reached"
    return made


def _profile(saves: Sequence[Line], base: float) -> Line:
    """Where a save costs what it costs. call_s, wait_s: of the host, for which the device need not wait.
    slower_gradients_s: forward and backward beside the copy, on the device. slower_by_position_s: the mean excess of
    each step from the save on, as far as half of the saves had such a step."""
    usual = _median([step for save in saves for step in save["gradients"]])
    windows = [save["window"] for save in saves]
    reach = int(np.median([len(window) for window in windows]))
    return {
        "call_s": _median([save["call_s"] for save in saves]),
        "wait_s": _median([save["wait_s"] for save in saves]),
        "slower_gradients_s": _median([save["first"]["gradients"] - usual for save in saves]),
        "gradients_s": usual,
        "slower_by_position_s": [
            float(np.mean([window[at] for window in windows if at < len(window)])) - base for at in range(reach)
        ],
    }


def _memory(lines: MethodLines, world: int) -> Line:
    """Growth per rank, since the arm was made: of the whole machine at its largest, and of the processes at the end."""
    trees = lines.end["tree_bytes"] if lines.end else []
    machine = None
    if lines.memory and lines.ready_at and lines.memory["used"]:
        until = [used for at, used in lines.memory["used"] if lines.ready_at - 1.0 <= at <= lines.ready_at]
        later = [used for at, used in lines.memory["used"] if at > lines.ready_at]
        if until and later:
            machine = (max(later) - until[-1]) / world
    processes = max(trees) if trees else None
    known = [value for value in (machine, processes) if value is not None]
    return {"host_bytes": max(known) if known else None, "host_machine_bytes": machine, "host_process_bytes": processes}


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def fold(raw: Raw) -> Line:
    """The result. A method that left nothing has a row with the reason."""
    calibration = raw.calibration
    if calibration is None or not raw.runs:
        errors = [run.error for runs in raw.by_method.values() for run in runs.values() if run.error]
        return {"rows": [{"method": CALIBRATE, "error": errors[-1] if errors else "it has not run"}]}
    machine, runs = raw.runs[0], {run["run"]: run for run in raw.runs}
    rows = []
    for name in METHODS:
        if name in raw.by_method:
            run, lines = raw.best(name)
            rows.append(row(name, lines, calibration, machine["world"]) | _measured_by(runs[run]))
    long = [one["step_s"] for one in rows if "step_s" in one and METHODS[one["method"]].step == "long"]
    return {
        "hardware": machine["hardware"] | {"gpus": calibration["gpus"][: machine["world"]]},
        "versions": calibration["versions"],
        "commit": machine["commit"],
        "boots": len({run["boot"] for run in raw.runs}),
        "target": machine["target"],
        "ranks": machine["world"],
        "model": machine["model"] | {"parameters": calibration["parameters"]},
        "batch": {key: calibration[key] for key in MICRO_BATCH.values()},
        "step_s": _median(long) if long else calibration["step_s"],
        "shard_bytes": calibration["shard_bytes"],
        "copy_gb_s": calibration["copy_gb_s"],
        "copy_s": calibration["copy_s"],
        "rows": rows,
        "write": _content(raw.write),
        "profile": _content(raw.profile),
    }


def _measured_by(run: Line) -> Line:
    """Of which commit a row is, and how many steps without a save lie between its saves."""
    return {"commit": run["commit"], "block": run["block"]}


def _content(line: Line | None) -> Line | None:
    """What a line says beside where it comes from."""
    return line and {key: value for key, value in line.items() if key not in ("kind", "method", "run", "at")}
