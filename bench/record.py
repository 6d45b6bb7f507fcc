"""What a finished `make demo` measured, as one raw JSON file: the only source of the numbers in README.md and docs/."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.demo import ROOT, compare
from holdfast.config import ConfigError, Problem
from holdfast.goodput.failures import Fault, Recovery
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.reader import read_run

SCHEMA = 1
UNKNOWN = "unknown"
KEPT = ROOT / "bench" / "results" / "cpu" / "demo.json"
_PACKAGES = ("torch", "nvidia-resiliency-ext", "transformers")
_CODE = ("holdfast", "k8s", "trainer", "bench/demo.py", "requirements.txt")
"""What must not differ from the commit for the numbers to be its numbers."""
_LEDGER_KEYS = ("wall_s", "goodput", "buckets", "recoveries", "checkpoints")


@dataclass(frozen=True)
class Measured:
    """The kept JSON. Times in seconds; clean and broken are `holdfast report --json`, in part, of the two runs."""

    date: str
    commit: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    summary: dict[str, Any]
    comparison: dict[str, Any]
    clean: dict[str, Any]
    broken: dict[str, Any]

    @property
    def recoveries(self) -> list[Recovery]:
        """How the broken run got over each fault, in order of time."""
        return [_recovery(raw) for raw in self.broken["recoveries"]]


def _recovery(raw: dict[str, Any]) -> Recovery:
    fault = Fault(raw["id"], raw["kind"], raw["rank"], raw["step"], raw["at_s"])
    how = {key: raw[key] for key in ("layer", "detected_s", "recovered_s", "lost_steps", "breakdown")}
    return Recovery(fault=fault, **how)


def read(path: Path = KEPT) -> Measured:
    """The kept measurement. Raises ConfigError if it is missing or of another schema."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        return Measured(**raw)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "run `make demo`, then `python -m bench.document --record`"
        raise ConfigError([Problem("measurement", path.name, f"it cannot be used ({error})", fix)]) from None


def record(demo: Path, path: Path = KEPT) -> Measured:
    """Keep what the demo in `demo` (dist/demo) has left. Raises ConfigError if it did not finish."""
    try:
        summary = json.loads((demo / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        why = "there is no summary.json in it: the demo has not finished"
        raise ConfigError([Problem("--record", str(demo), why, "run `make demo` first")]) from None
    broken = account(read_run(demo / "broken" / "run"))
    measured = Measured(
        date=datetime.fromtimestamp(broken.origin, UTC).date().isoformat(),
        commit=commit(),
        hardware=hardware(),
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        summary=summary,
        comparison={
            key: value
            for key, value in compare(demo / "clean" / "run", demo / "broken" / "run").items()
            if key in ("identical", "tensors", "parameters")
        },
        clean=_part(account(read_run(demo / "clean" / "run"))),
        broken=_part(broken),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": SCHEMA, **measured.__dict__}, indent=1) + "\n", encoding="utf-8")
    return measured


def _part(ledger: Ledger) -> dict[str, Any]:
    summary = ledger.summary()
    return {key: summary[key] for key in _LEDGER_KEYS} | {"goodput": ledger.goodput_total}


def commit(code: Iterable[str] = _CODE) -> str:
    """The commit that was measured; with `+` if the code (paths from the root) differed from it."""
    head = _git("rev-parse", "--short=10", "HEAD")
    return f"{head}+" if head != UNKNOWN and _git("status", "--porcelain", "--", *code) else head


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip()


def hardware() -> dict[str, Any]:
    """The machine that measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
    }
