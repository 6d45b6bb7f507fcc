"""What benches that gather over several calls have alike: a raw file that each call adds to, a deadline, a result."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import json_lines
from bench.demo import ROOT
from bench.record import commit


class Call:
    """One call of such a bench: how much time it has left, under which name its lines stand in the raw file."""

    def __init__(self, arguments: argparse.Namespace, console: Console, ending_s: float) -> None:
        """ending_s: before the deadline, to end processes and write the result."""
        self.console = console
        self.run = f"{time.time():.0f}-{os.getpid()}"
        self._raw: Path = arguments.raw
        self._end: float = time.monotonic() + arguments.deadline - ending_s

    def time_for(self, name: str, least_s: float) -> float | None:
        """Seconds left to begin `name`; None, and a word on it, if they are fewer than `least_s`."""
        left = self._end - time.monotonic()
        if left >= least_s:
            return left
        self.console.print(f"{name}: not started, {left:.0f} s are left before the deadline")
        return None

    def note(self, kind: str, **fields: object) -> None:
        """Add a line to the raw file."""
        json_lines.append(self._raw, {"kind": kind, "run": self.run, "at": time.time()} | fields)

    def failed(self, name: str, why: str) -> None:
        """Say that it failed."""
        self.console.print(f"{name} failed: {why}", soft_wrap=True, style="red", markup=False)


def add_options(parser: argparse.ArgumentParser, result: str, raw: Path | None) -> None:
    """Add the options of a call. result: name of the result's file. raw: default below dist/; None: it has its own."""
    add = parser.add_argument
    add("--deadline", type=float, default=float("inf"), metavar="S", help="seconds after which the call has ended")
    add("--hardware", default="cpu", help="folder below bench/results")
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


def with_numbers(
    rows: Iterable[Mapping[str, Any]], name: str, number: str, console: Console
) -> Iterator[Mapping[str, Any]]:
    """The rows that were measured; of the others, say why not. name, number: keys of a row; measured ones have both."""
    for row in rows:
        if number in row:
            yield row
        else:
            console.print(f"{row[name]}: {row.get('error') or row.get('skipped')}", soft_wrap=True, markup=False)


def tell(arguments: argparse.Namespace, console: Console) -> None:
    """Say where result and raw lines are."""
    console.print(f"result: {arguments.out}\nraw: {arguments.raw}", soft_wrap=True)
