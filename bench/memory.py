"""`python -m bench.memory`: peak GPU memory as `holdfast check` predicts it, and as it is measured.

Each setting runs in processes of its own for three steps of the trainer. What was measured is appended at once to a raw
file; a further call measures what is missing there, or with --fold-only only makes the result from it. On two GPUs, or
with --gpus 1 --hardware h200x1 on one:

    python -m bench.memory --hardware h200x2 --raw RAW.jsonl --deadline 500
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import json_lines
from bench.gathering import Call, add_options, keep, settle, tell
from bench.memory_results import CODE, missing, result, show
from bench.memory_spec import RANKS, Order, settings
from bench.rank_processes import run_ranks

RANK = "bench.arms.memory_rank"
SETTING_LIMIT_S = 300.0
"""Longest that the ranks of one setting may take: imports, weights of 8 B parameters, compilation, three steps."""
LEAST_S = 30.0
"""A setting is not begun with less than this before the deadline."""
END_S = 10.0
"""Before the deadline: to end all processes and write the result."""


def main() -> int:
    """Measure what is missing; 0 if every setting was measured, 1 if not."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    files = [*arguments.more, arguments.raw]
    if not arguments.fold_only:
        gather(arguments, files, console)
    lines = json_lines.read(files)
    made = result(lines, arguments)
    if made is None:
        console.print(f"no setting was measured; raw: {arguments.raw}", soft_wrap=True)
        return 1
    keep(made, arguments.out)
    show(made, console)
    tell(arguments, console)
    failed = {row["setting"] for row in made["rows"] if "error" in row}
    return 1 if missing(lines, arguments) or failed & set(arguments.settings) else 0


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="two gloo ranks and tiny models; tries the bench out")
    parser.add_argument("--settings", help="comma-separated (default: all)")
    parser.add_argument("--fold-only", action="store_true", help="measure nothing, only fold the raw files")
    parser.add_argument("--gpus", type=int, default=RANKS, help=f"ranks that share the model (default: {RANKS})")
    add_options(parser, "memory.json", Path("memory") / "settings.jsonl")
    arguments = parser.parse_args(words)
    if arguments.gpus < 1:
        parser.error("--gpus: at least 1")
    known = settings(not arguments.cpu)
    arguments.settings = list(known) if arguments.settings is None else arguments.settings.split(",")
    if unknown := sorted(set(arguments.settings) - set(known)):
        parser.error(f"--settings: there is no {', '.join(unknown)}; there are: {', '.join(known)}")
    settle(arguments, "memory.json", CODE)
    return arguments


def gather(arguments: argparse.Namespace, files: list[Path], console: Console) -> None:
    """Run each setting that has no measurement yet, until it is the deadline."""
    call, at = Call(arguments, console, END_S), arguments.commit
    for name in missing(json_lines.read(files), arguments):
        if (left := call.time_for(name, LEAST_S)) is None:
            return
        start = time.monotonic()
        found = measure(Order(name, not arguments.cpu, arguments.gpus), min(left, SETTING_LIMIT_S))
        about = {"setting": name, "cuda": not arguments.cpu, "world": arguments.gpus, "commit": at}
        json_lines.append(arguments.raw, about | found)
        took = f"{time.monotonic() - start:.0f} s"
        console.print(f"{name}: {found.get('error', took)}", soft_wrap=True, markup=False)


def measure(order: Order, limit_s: float) -> dict[str, Any]:
    """What the ranks say, or `error`: why they said nothing; and `cut`: it was for want of time in this call."""
    ended, said = run_ranks(RANK, order.to_json(), order.ranks, limit_s, cuda=order.cuda)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not ended.well or not lines:
        cut = ended.late and limit_s < SETTING_LIMIT_S
        return {"error": ended.why or "rank 0 has printed nothing", "cut": cut}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
