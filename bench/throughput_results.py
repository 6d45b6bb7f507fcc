"""From the raw lines of the throughput bench to its result: medians of steps, tokens per second, MFU, and where a
step's milliseconds go.

MFU is the model's own operations, 6 per multiplying parameter and token and 12 x layers x width x sequence for
attention (holdfast/config/flops.py), by the GPU's dense bfloat16 peak. What is computed again to save memory does
not count. Causal attention computes half of its matrix: mfu_causal counts only that half, mfu all of it, as the
field does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import pstdev
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gathering import with_numbers
from bench.rank_processes import given_up
from bench.throughput_spec import GOALS, TRIALS, Shape, Sizes, Trial
from holdfast.config.flops import PEAK_BF16_TFLOPS, flops_per_token

Line = Mapping[str, Any]
SCHEMA = 1
PEAK_TFLOPS = PEAK_BF16_TFLOPS["p5en.48xlarge"]
"""Of an H200, as of an H100."""
UNTRAINED = 1.5
"""The first loss is so close to that of a guess among all tokens, or an arm does not compute what the others do."""
PRECISION = "bf16"


def alike(lines: Iterable[Line], sizes: Sizes) -> list[Line]:
    """Those of trials of these sizes: what was tried out on a CPU or in fewer steps measures something else."""
    wanted = {trial.name: sizes.of(trial.model).items() for trial in TRIALS}
    return [line for line in lines if line.get("trial") in wanted and wanted[line["trial"]] <= line.items()]


def missing(name: str, lines: Iterable[Line], *, trace: bool) -> set[str]:
    """What of a trial is still to be measured: `steps`, `trace`. Nothing of one that does not fit into memory, or has
    failed too often. lines: alike."""
    mine = [line for line in lines if line["trial"] == name]
    if given_up(_failures(mine)):
        return set()
    wanted = {"steps", "trace"} if trace else {"steps"}
    return wanted - {line["kind"] for line in mine}


def to_do(trials: Iterable[Trial], lines: Sequence[Line], *, trace: bool) -> list[tuple[Trial, set[str]]]:
    """Trials and what of them is missing: what was never tried comes first, what failed most often last."""
    failed = Counter(line["trial"] for line in lines if line["kind"] == "failed")
    found = [(trial, parts) for trial in trials if (parts := missing(trial.name, lines, trace=trace))]
    return sorted(found, key=lambda pair: failed[pair[0].name])


def unfinished(trials: Iterable[Trial], lines: Sequence[Line], *, trace: bool) -> list[str]:
    """Names of the trials that a further call would go on with, if it is on a machine like this one."""
    last = {line["trial"]: line["kind"] for line in lines}
    return [trial.name for trial, _ in to_do(trials, lines, trace=trace) if last.get(trial.name) != "skipped"]


def _failures(mine: Sequence[Line]) -> list[Line]:
    """Since anything of it was measured."""
    since = max((index for index, line in enumerate(mine) if line["kind"] in ("steps", "trace")), default=-1)
    return [line for line in mine[since + 1 :] if line["kind"] == "failed"]


def fold(lines: Sequence[Line], sizes: Sizes) -> dict[str, Any]:
    """The kept file, from all lines of these sizes."""
    runs = {line["run"]: line for line in lines if line.get("kind") == "run"}
    lines = alike(lines, sizes)
    measured = [line for line in lines if line["kind"] == "steps"]
    shapes = sizes.shapes
    trials = sorted(TRIALS, key=lambda trial: list(shapes).index(trial.model))
    rows = [row for trial in trials if (row := _row(trial, shapes[trial.model], lines)) is not None]
    for model in shapes:
        _mark_best([row for row in rows if row["shape"] == model and "tokens_per_s_per_gpu" in row])
    last = measured[-1] if measured else {"versions": {}, "gpus": [], "run": None}
    machine = runs.get(last["run"], {"hardware": {}})
    versions: dict[str, str] = {}
    for line in measured:
        versions |= line["versions"]
    return {
        "schema": SCHEMA,
        "about": " ".join((__doc__ or "").split()),
        "hardware": {**machine["hardware"], "gpus": max((line["gpus"] for line in measured), key=len, default=[])},
        "versions": versions,
        "commit": ", ".join(sorted({runs[line["run"]]["commit"] for line in measured if line["run"] in runs})),
        "peak_tflops": PEAK_TFLOPS,
        "goals": GOALS,
        "rows": rows,
        "where": [where for trial in trials if (where := _where(trial, lines)) is not None],
    }


def _row(trial: Trial, shape: Shape, lines: Iterable[Line]) -> dict[str, Any] | None:
    mine = [line for line in lines if line["trial"] == trial.name]
    if not mine:
        return None
    failures = _failures(mine)
    error = ": ".join([*filter(None, [given_up(failures)]), failures[-1]["error"]]) if failures else ""
    head = {
        "arm": trial.arm,
        "model": shape.title,
        "shape": trial.model,
        "gpus": shape.gpus,
        "seq_len": shape.sequence,
        "precision": PRECISION,
        "samples_per_step": shape.samples,
        "micro_batch": trial.micro_batch,
        "activation_checkpointing": trial.checkpointing,
        "compile": trial.compile,
        "loss_chunk_tokens": trial.loss_chunk,
        "trial": trial.name,
    }
    steps = next((line for line in reversed(mine) if line["kind"] == "steps"), None)
    if steps is None:
        skipped = [line["reason"] for line in mine if line["kind"] == "skipped"]
        return head | ({"error": error} if error else {"skipped": skipped[-1]})
    return head | _numbers(shape, steps) | ({"trace_error": error} if error else {})


def _numbers(shape: Shape, steps: Line) -> dict[str, Any]:
    tokens = shape.samples * shape.sequence / shape.gpus / steps["median_s"]
    guess = math.log(shape.vocabulary)
    sane = abs(steps["first_loss"] - guess) < UNTRAINED and math.isfinite(steps["last_loss"])
    return {
        "tokens_per_s_per_gpu": tokens,
        "mfu": tokens * flops_per_token(shape.model, shape.sequence) / (PEAK_TFLOPS * 1e12),
        "mfu_causal": tokens * causal_flops_per_token(shape) / (PEAK_TFLOPS * 1e12),
        "peak_gib": steps["peak_gib"],
        "peak_reserved_gib": steps["peak_reserved_gib"],
        "alloc_retries": steps.get("alloc_retries"),  # lines of the first calls have none
        "steps": len(steps["each_s"]),
        "step_s": steps["median_s"],
        "step_spread_s": pstdev(steps["each_s"]),
        "first_loss": steps["first_loss"],
        "last_loss": steps["last_loss"],
        "loss_is_sane": sane,
        "built_s": steps["built_s"],
        "warm_up_s": steps["warm_s"],
        "compiled_graphs": steps["graphs"],
        "settings": steps["settings"],
        "best_of_arm": False,
    }


def causal_flops_per_token(shape: Shape) -> float:
    """Operations per token if attention counts only what a causal mask leaves of it: half."""
    return flops_per_token(shape.model, shape.sequence) - 6.0 * shape.layers * shape.hidden * shape.sequence


def _mark_best(rows: Iterable[dict[str, Any]]) -> None:
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: float(row["tokens_per_s_per_gpu"])):
        if row["loss_is_sane"]:
            best[row["arm"]] = row
    for row in best.values():
        row["best_of_arm"] = True


def _where(trial: Trial, lines: Iterable[Line]) -> dict[str, Any] | None:
    found = [line for line in lines if line["kind"] == "trace" and line["trial"] == trial.name]
    if not found:
        return None
    keys = ("steps", "step_ms", "ms", "nccl_in_all_ms", "kernels")
    return {"trial": trial.name, "arm": trial.arm, "shape": trial.model, **{key: found[-1][key] for key in keys}}


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the rows."""
    columns = ("trial", "step s", "tokens/s/GPU", "MFU", "causal", "peak GiB", "reserved", "retries", "graphs", "loss")
    table = Table(*columns)
    for row in with_numbers(result["rows"], "trial", "tokens_per_s_per_gpu", console):
        table.add_row(
            row["trial"] + " *" * row["best_of_arm"],
            f"{row['step_s']:.4f}",
            f"{row['tokens_per_s_per_gpu']:,.0f}",
            f"{row['mfu']:.2%}",
            f"{row['mfu_causal']:.2%}",
            f"{row['peak_gib']:.1f}",
            f"{row['peak_reserved_gib']:.1f}",
            "-" if row["alloc_retries"] is None else str(row["alloc_retries"]),
            str(row["compiled_graphs"]),
            f"{row['first_loss']:.2f} -> {row['last_loss']:.2f}{'' if row['loss_is_sane'] else ' WRONG'}",
        )
        if "trace_error" in row:
            console.print(f"{row['trial']}, no trace: {row['trace_error']}", soft_wrap=True, markup=False)
    console.print(table)
    for where in result["where"]:
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in where["ms"].items())
        console.print(f"{where['trial']}: {where['step_ms']:.1f} ms = {parts}", soft_wrap=True, markup=False)
