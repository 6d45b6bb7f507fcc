"""What bench.recovery keeps: one line per recovery, at once, and the medians of them as rows."""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import json_lines
from bench.record import hardware
from holdfast.goodput.failures import PARTS

SCHEMA = 1
CODE = ("holdfast", "k8s", "trainer", "bench/recovery.py")
"""What must not differ from the commit for the numbers to be its numbers."""
PACKAGES = ("torch", "nvidia-resiliency-ext", "transformers")
FAILURES = 2
"""Jobs of one arm that may fail before it is given up."""


@dataclass(frozen=True)
class Sample:
    """One recovery. kind: of the fault in the config; fault: what the result calls it. breakdown: seconds by PARTS."""

    arm: str
    kind: str
    fault: str
    layer: str
    seconds: float
    breakdown: Mapping[str, float | None]


class WorkFile:
    """JSON lines of samples. A torn line, of a bench that was killed, does not count."""

    def __init__(self, path: Path, more: Sequence[Path]) -> None:
        """more: files that are only read."""
        self._path = path
        self._failed: dict[str, int] = defaultdict(int)
        self.samples = [sample for file in (path, *more) for sample in _read(file)]
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, sample: Sample) -> None:
        """Append it, durably."""
        json_lines.append(self._path, asdict(sample))
        self.samples.append(sample)

    def fail(self, arm: str) -> None:
        """Note a job of this arm that has failed."""
        self._failed[arm] += 1

    def count(self, arm: str, kind: str) -> float:
        """Recoveries from this kind of fault in this arm; infinite for an arm that is given up."""
        if self._failed[arm] >= FAILURES:
            return float("inf")
        return sum(sample.arm == arm and sample.kind == kind for sample in self.samples)


def _read(path: Path) -> Iterable[Sample]:
    for line in json_lines.read([path]):
        with suppress(TypeError):
            yield Sample(**line)


def fold(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row per arm and fault. A fault that another layer than usual has cured is a row of its own."""
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.arm, sample.fault, sample.layer].append(sample)
    return [_row(*key, found) for key, found in groups.items()]


def _row(arm: str, fault: str, layer: str, found: Sequence[Sample]) -> dict[str, Any]:
    parts = {}
    for part in PARTS:
        seconds = [value for sample in found if (value := sample.breakdown.get(part)) is not None]
        parts[part] = round(median(seconds), 3) if seconds else None
    return {
        "arm": arm,
        "fault": fault,
        "layer": layer,
        "n": len(found),
        "median_s": round(median(sample.seconds for sample in found), 3),
        "all_s": sorted(round(sample.seconds, 3) for sample in found),
        "breakdown_s": parts,
    }


def about(profile: str, sets: Sequence[str], measured: str) -> dict[str, Any]:
    """Where, when and with what was measured. load: of the machine at the end, by which a CPU's numbers are judged."""
    return {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": measured,
        "hardware": hardware(),
        "load": round(os.getloadavg()[2], 1),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "profile": profile,
        "overrides": list(sets),
    }


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The rows as a table: medians in seconds."""
    table = Table(title="From the fault to the end of the next finished step: medians, in seconds")
    for heading in ("fault", "arm", "layer", "n", "total", *PARTS):
        table.add_column(heading.replace("_", " "))
    for row in sorted(rows, key=lambda row: (row["fault"], row["median_s"])):
        parts = ["" if value is None else f"{value:.2f}" for value in row["breakdown_s"].values()]
        table.add_row(row["fault"], row["arm"], row["layer"], str(row["n"]), f"{row['median_s']:.2f}", *parts)
    console.print(table)
