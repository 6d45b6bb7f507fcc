"""What benches that gather over several calls have alike: a raw file that each call adds to, a deadline, a result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.demo import ROOT
from bench.record import commit

HARDWARE = "cpu"


def add_options(parser: argparse.ArgumentParser, result: str, raw: Path | None) -> None:
    """Add the options of a call. result: name of the result's file. raw: default below dist/; None: it has its own."""
    add = parser.add_argument
    add("--deadline", type=float, default=float("inf"), metavar="S", help="seconds after which the call has ended")
    add("--hardware", default=HARDWARE, help="folder below bench/results")
    add("--commit", help="commit that is measured (default: asks git)")
    if raw is not None:
        add("--raw", type=Path, default=ROOT / "dist" / raw, help="JSON lines, added to")
    add("--more", type=Path, nargs="*", default=[], help="raw files of former calls; they count as well")
    add("--out", type=Path, help=f"the result; default: bench/results/HARDWARE/{result}")


def settle(arguments: argparse.Namespace, result: str, code: Sequence[str], *, tried_out: bool = False) -> None:
    """Fill in what was left out. code: what must not differ from the commit. tried_out: on a CPU, the result is none to
    keep, unless it is said where."""
    kept = ROOT / "dist" / "bench" if tried_out else ROOT / "bench" / "results" / arguments.hardware
    arguments.out = arguments.out or kept / result
    arguments.raw = arguments.raw.absolute()
    arguments.commit = arguments.commit or commit(code)


def keep(result: Mapping[str, Any], out: Path) -> None:
    """Write the result."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def tell(arguments: argparse.Namespace, console: Console) -> None:
    """Say where result and raw lines are."""
    console.print(f"result: {arguments.out}\nraw: {arguments.raw}", soft_wrap=True)
