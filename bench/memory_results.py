"""What bench.memory makes of its measurements: for each setting the prediction beside them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.article_rows import machine
from bench.gathering import with_numbers
from bench.memory_spec import GOAL, Order, settings
from bench.rank_processes import given_up
from holdfast.config import gpu_memory
from holdfast.config.sizing import GIB

SCHEMA = 1
CODE = (
    "holdfast",
    "trainer",
    "bench/arms/leaving.py",
    "bench/arms/memory_rank.py",
    *(f"bench/memory{part}.py" for part in ("", "_results", "_spec")),
)
"""What must not differ from the commit for the numbers to be its numbers."""
ABOUT = (
    "Peak GPU memory of one rank in a training step. predicted_gib: by the formula of `holdfast check`, with parts; it "
    "counts torch's tensors, and is compared with measured_allocated_gib, the most that they took on any rank "
    "(torch.cuda.max_memory_allocated, model building and three steps). error_fraction: predicted / measured - 1. "
    "measured_reserved_gib: what torch's allocator took of the GPU; measured_used_gib: all that was taken of it after "
    "the last step, by CUDA and NCCL too; needed_gib: what `holdfast check` wants a GPU to have; where there "
    "is more, the allocator takes more."
)
CPU = " On a CPU nothing is measured: this tries the bench out, no more."


def measured_lines(lines: Sequence[Mapping[str, Any]], cuda: bool, ranks: int) -> dict[str, Mapping[str, Any]]:
    """The newest measurement of each setting. Of one that has none the newest failure, with `failures`, how often it
    has failed, and `given_up`: why it is not tried again, or nothing."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in settings(cuda):
        alike = {"setting": name, "cuda": cuda, "world": ranks}
        mine = [line for line in lines if alike.items() <= line.items()]
        good = [line for line in mine if "error" not in line]
        if mine:
            found[name] = good[-1] if good else {**mine[-1], "failures": len(mine), "given_up": given_up(mine)}
    return found


def missing(lines: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> list[str]:
    """Settings that are asked for and still to be measured, in order; what failed most often comes last."""
    found = measured_lines(lines, not arguments.cpu, arguments.gpus)
    left = [name for name in arguments.settings if name not in found or found[name].get("given_up") == ""]
    return sorted(left, key=lambda name: int(found[name]["failures"]) if name in found else 0)


def result(lines: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The kept file, or None if nothing was measured."""
    cuda, ranks = not arguments.cpu, arguments.gpus
    found = measured_lines(lines, cuda, ranks)
    rows = [_row(found[name], Order(name, cuda, ranks)) for name in settings(cuda) if name in found]
    if all("error" in row for row in rows):
        return None
    commits = sorted({line["commit"] for line in found.values()})
    errors = [abs(row["error_fraction"]) for row in rows if row.get("error_fraction") is not None]
    return {
        "schema": SCHEMA,
        "about": ABOUT + CPU * arguments.cpu,
        **machine(Order(next(iter(found)), cuda, ranks).config),
        "gpus": ranks,
        "commit": ", ".join(commits),
        "goal": GOAL,
        "largest_error_fraction": max(errors, default=None),
        "rows": rows,
    }


def _row(line: Mapping[str, Any], order: Order) -> dict[str, Any]:
    found = gpu_memory.peak(order.config)
    assert found is not None, f"{line['setting']}: the bench has models with formulas only"
    predicted = {
        "setting": line["setting"],
        "overrides": settings(order.cuda)[order.setting].overrides(order.ranks),
        "predicted_gib": found.gib,
        "moment": found.moment,
        "parts": {name: size / GIB for name, size in found.parts.items()},
        "needed_gib": gpu_memory.needed_bytes(found) / GIB,
    }
    if "error" in line:
        return predicted | {"error": ": ".join([*filter(None, [line["given_up"]]), line["error"]])}
    most = {f"measured_{name}_gib": _most(line["ranks"], name) for name in ("allocated", "reserved", "used")}
    allocated = most["measured_allocated_gib"]
    return (
        predicted
        | most
        | {
            "gpu_gib": _most(line["ranks"], "total"),
            "gpu": line["gpu"],
            "torch": line["torch"],
            "error_fraction": None if allocated is None else found.gib / allocated - 1,
        }
    )


def _most(ranks: Sequence[Mapping[str, int]], name: str) -> float | None:
    sizes = [rank[name] for rank in ranks if name in rank]
    return max(sizes) / GIB if sizes else None


def show(made: Mapping[str, Any], console: Console) -> None:
    """The rows, in GiB."""
    table = Table("setting", "predicted", "moment", "tensors", "off by", "reserved", "used", "needed", title="GiB")
    for row in with_numbers(made["rows"], "setting", "error_fraction", console):
        off = row["error_fraction"]
        table.add_row(
            row["setting"],
            f"{row['predicted_gib']:.2f}",
            row["moment"],
            _gib(row["measured_allocated_gib"]),
            "-" if off is None else f"{off:+.1%}",
            _gib(row["measured_reserved_gib"]),
            _gib(row["measured_used_gib"]),
            f"{row['needed_gib']:.2f}",
        )
    console.print(table)


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size:.2f}"
