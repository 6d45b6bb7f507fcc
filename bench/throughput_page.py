"""Throughput in the documents, from the kept result of bench.throughput; no number in it is typed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.article_page import Table
from bench.demo import ROOT
from bench.rank_processes import fits_not
from bench.throughput_spec import EAGER, GOALS, HOLDFAST, SHAPES, TITAN

KEPT = tuple(
    ROOT / "bench" / "results" / name
    for name in ("h200x2/throughput.json", "h200x1/throughput.json", "h200x1/throughput_again.json")
)
WORDS = {HOLDFAST: "**Holdfast**", EAGER: "plain FSDP2 script, eager", TITAN: "torchtitan"}
COLUMNS = (
    "model", "arm", "<micro batch", "checkpointing", "compiled", "<step", "<tokens/s/GPU", "<MFU", "<causal MFU",
    "<peak memory",
)  # fmt: skip
PARTS = {
    "gemm": "matrix products",
    "attention_forward": "attention, forward",
    "attention_backward": "attention, backward",
    "loss": "softmax of the loss",
    "optimizer": "optimizer and clipping",
    "norms_and_elementwise": "norms, rotations, activations",
    "copies": "copies",
    "nccl": "communication that nothing hides",
    "idle": "nothing at work",
}
COMPUTED = (
    "MFU counts the model's own operations (6 per multiplying parameter and token, 12 x layers x width x sequence for "
    "attention) by {peak:.0f} TFLOP/s; causal MFU counts half of attention, which is all that a causal mask leaves. "
    "All arms of a model train the same shape on the same tokens, as many samples of {sequence} tokens per step; "
    "medians of {steps} steps. Memory is what the fullest GPU has allocated at its peak."
)
NOT_YET = (
    "Not measured yet: `python -m bench.throughput --hardware h200x2 --trace` on a machine with two GPUs makes the "
    "numbers for this place."
)
ALONE = (
    "On one GPU torchtitan leaves FSDP out, and neither copies nor reduces anything; ours and the plain script keep "
    "it, as a cluster has it."
)
AGAIN = (
    "Ours again, on another machine of the kind, with newer code, in which embeddings and output layer are units of "
    "their own:"
)
SHORT_OF = 120
"""Characters of a reason."""


def read(path: Path) -> dict[str, Any] | None:
    """The kept result, if there is one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def throughput(folder: Path, table: Table, paths: Sequence[Path] = KEPT) -> str:
    """Of each kept result the table, what was aimed at, and where the time goes; of a goal that none of them has a
    number for, that it is so. folder: of the document that says so."""
    found = [(path, result) for path in paths if (result := read(path)) is not None]
    if not found:
        return NOT_YET
    parts = []
    for path, result in found:
        parts += [AGAIN] if path.name == "throughput_again.json" else []
        parts.append(_of_one(folder, table, path, result))
    reached = {row["shape"] for _, result in found for row in result["rows"] if _counts(row)}
    return "\n\n".join([*parts, *(_none_yet(model, goal) for model, goal in GOALS.items() if model not in reached)])


def headline(folder: Path, paths: Sequence[Path] = KEPT) -> str:
    """MFU of ours beside that of others, of the newest result of the first machine that has any; nothing if there is
    none. folder: of the document that says so."""
    there = [path for path in paths if path.exists()]
    result = next((read(path) for path in reversed(there) if path.parent == there[0].parent), None)
    if result is None:
        return ""
    best = [row for row in result["rows"] if row.get("best_of_arm")]
    said = "; ".join(filter(None, (_in_short([row for row in best if row["shape"] == model]) for model in SHAPES)))
    page = os.path.relpath(ROOT / "docs" / "results.md", folder)
    return f"MFU: {said} ([settings, traces, and what is not measured]({page}))."


def _in_short(best: Sequence[Mapping[str, Any]]) -> str:
    """The best rows of one model; nothing if ours has none."""
    by_arm = {row["arm"]: row for row in best}
    if HOLDFAST not in by_arm:
        return ""
    ours = by_arm.pop(HOLDFAST)
    others = ", ".join(f"{WORDS[arm]} {row['mfu']:.1%}" for arm, row in by_arm.items())
    return (
        f"{ours['mfu']:.1%} for {ours['model']} on {ours['gpus']} GPU{'s' * (ours['gpus'] > 1)}"
        f"{f' ({others})' * bool(others)}"
    )


def _counts(row: Mapping[str, Any]) -> bool:
    return row["arm"] == HOLDFAST and "tokens_per_s_per_gpu" in row and row["loss_is_sane"]


def _none_yet(model: str, goal: float) -> str:
    shape = SHAPES[model]
    return (
        f"Not measured: {shape.title} on {shape.gpus} GPU{'s' * (shape.gpus > 1)}, where {goal:.0%} MFU is aimed at "
        f"(`python -m bench.throughput --models {model} --trace` there)."
    )


def _of_one(folder: Path, table: Table, path: Path, result: Mapping[str, Any]) -> str:
    rows = result["rows"]
    measured = [row for row in rows if "tokens_per_s_per_gpu" in row]
    parts = [_source(result, path, folder), table(COLUMNS, [_cells(row) for row in rows])]
    parts += filter(None, (_verdict(model, result["goals"].get(model), measured) for model in SHAPES))
    if measured:
        first = measured[0]
        parts.append(
            COMPUTED.format(
                peak=result["peak_tflops"],
                sequence=first["seq_len"],
                steps=first["steps"],
            )
        )
    parts += _notes(measured)
    where = _where(result, measured)
    return "\n\n".join([*parts, *([where[0], table(*where[1])] if where else [])])


def _notes(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader has to know to compare these rows."""
    notes = []
    if any(row["gpus"] == 1 and row["arm"] == TITAN for row in measured):
        notes.append(ALONE)
    if any(row["alloc_retries"] is None for row in measured):
        notes.append("How often the allocator had to give memory back was not counted here.")
    full = [row for row in measured if row["alloc_retries"]]
    if full:
        often = ", ".join(f"{row['trial']} {row['alloc_retries']} times in {row['steps']} steps" for row in full)
        notes.append(f"The GPU was full, and the allocator had to give memory back and wait for it: {often}.")
    return notes


def _source(result: Mapping[str, Any], path: Path, folder: Path) -> str:
    hardware, versions = result["hardware"], result["versions"]
    gpus: Sequence[str] = hardware["gpus"]
    machine = f"{len(gpus)} x {gpus[0]}" if gpus else f"{hardware.get('cores', '?')} CPU cores, which only tries it out"
    titan = f", torchtitan {versions['torchtitan']}" if "torchtitan" in versions else ""
    return (
        f"Measured on {machine}, torch {versions.get('torch', '?')}, transformers {versions.get('transformers', '?')}"
        f"{titan}, commit {result['commit'] or '?'} ([raw numbers]({os.path.relpath(path, folder)}))."
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    how = [str(row["micro_batch"]), row["activation_checkpointing"], "yes" if row["compile"] else "no"]
    head = [f"{row['model']}, {row['gpus']} GPU{'s' * (row['gpus'] > 1)}", WORDS[row["arm"]], *how]
    if "tokens_per_s_per_gpu" not in row:
        return [*head, _short(row), *[""] * (len(COLUMNS) - len(head) - 1)]
    wrong = "" if row["loss_is_sane"] else " (its loss is WRONG)"
    star = "**" if row["best_of_arm"] else ""
    return [
        *head,
        f"{row['step_s']:.3f} s",
        f"{star}{row['tokens_per_s_per_gpu']:,.0f}{star}{wrong}",
        f"{star}{row['mfu']:.1%}{star}",
        f"{row['mfu_causal']:.1%}",
        f"{row['peak_gib']:.0f} GiB",
    ]


def _short(row: Mapping[str, Any]) -> str:
    if fits_not(row.get("error", "")):
        return "does not fit"
    return " ".join(str(row.get("skipped") or row.get("error")).split())[:SHORT_OF]


def _verdict(model: str, goal: float | None, measured: Sequence[Mapping[str, Any]]) -> str:
    """Of the best row of ours beside the best of each other; nothing if there is none. goal: None if none was set."""
    best = {row["arm"]: row for row in measured if row["shape"] == model and row["best_of_arm"]}
    if HOLDFAST not in best:
        return ""
    ours = best[HOLDFAST]
    others = [
        f"{ours['tokens_per_s_per_gpu'] / row['tokens_per_s_per_gpu']:.2f} times {WORDS[arm]}"
        for arm, row in best.items()
        if arm != HOLDFAST
    ]
    beside = f"; {' and '.join(others)}, each at its best" if others else ""
    return (
        f"{ours['model']} on {ours['gpus']} GPU{'s' * (ours['gpus'] > 1)}: {ours['tokens_per_s_per_gpu']:,.0f} tokens "
        f"per second and GPU, {ours['mfu']:.1%} MFU{_met(ours['mfu'], goal)}{beside}."
    )


def _met(mfu: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return f", {'as was aimed at' if mfu >= goal else 'MISSING what was aimed at'} (at least {goal:.0%})"


def _where(
    result: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[list[str], list[list[str]]]] | None:
    best = {row["trial"]: row for row in measured if row["best_of_arm"]}
    shown = [where for where in result["where"] if where["trial"] in best]
    if not shown:
        return None
    heads = [f"<{best[one['trial']]['model']}, {WORDS[one['arm']]}".replace("*", "") for one in shown]
    rows = [[words, *(f"{one['ms'][part]:.1f}" for one in shown)] for part, words in PARTS.items()]
    rows.append(["a step under the profiler", *(f"{one['step_ms']:.1f}" for one in shown)])
    rows.append(["communication in all, hidden or not", *(f"{one['nccl_in_all_ms']:.1f}" for one in shown)])
    said = (
        "Where the milliseconds of a step go, of each arm's best setting, by traces of two steps, which themselves "
        "slow it down. Every instant counts once, for the first of these that is at work then:"
    )
    return said, (["kind of work", *heads], rows)
