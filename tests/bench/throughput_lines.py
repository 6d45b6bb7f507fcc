"""Raw lines of the throughput bench, as its tests imagine them."""

from __future__ import annotations

import math
from typing import Any

from bench.throughput_results import fold
from bench.throughput_spec import EAGER, HOLDFAST, SHAPES, TRIALS, Sizes, Trial

OURS = next(trial for trial in TRIALS if trial.arm == HOLDFAST and trial.model == "8b")
PLAIN = next(trial for trial in TRIALS if trial.arm == EAGER and trial.model == "8b")
GUESS = math.log(SHAPES["8b"].vocabulary)
SIZES = Sizes(True, 4, 10)
NO_ROOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def run_line(run: str = "r") -> dict[str, Any]:
    return {"kind": "run", "trial": "", "run": run, "commit": "abc", "hardware": {"cores": 32}}


def steps_line(trial: Trial, seconds: float, **changed: Any) -> dict[str, Any]:
    line = {
        "kind": "steps", "trial": trial.name, "run": "r", "each_s": [seconds] * 10, "median_s": seconds,
        "first_loss": GUESS, "last_loss": GUESS - 1, "peak_gib": 100.0, "peak_reserved_gib": 110.0, "alloc_retries": 0,
        "graphs": 1, "settings": {}, "built_s": 9.0, "warm_s": 60.0, "versions": {"torch": "2.11.0"},
        "gpus": ["NVIDIA H200"] * 2,
    }  # fmt: skip
    return line | SIZES.of(trial.model) | changed


def failed_line(trial: Trial, error: str, **changed: Any) -> dict[str, Any]:
    return {"kind": "failed", "trial": trial.name, "run": "r", "error": error, **SIZES.of(trial.model)} | changed


def folded(*lines: dict[str, Any]) -> dict[str, Any]:
    return fold([run_line(), *lines], SIZES)


def row_of(result: dict[str, Any], trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in result["rows"] if row["trial"] == trial.name)
    return found
