"""The newest failure of a rank that is on record: what it was, and where its output is."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config import names
from holdfast.run_directory import RunDirectory, read_json

_NAME = re.compile(r"(g(\d+)-c(\d+))(?:-r(\d+))?\.(?:rank|death)(\d+)\.json")


def cycle_of_record(name: str) -> str | None:
    """`g1-c4` of the record of a failure or a death in that launcher cycle; None for another file in `attempts/`."""
    match = _NAME.fullmatch(name)
    return None if match is None else match.group(1)


@dataclass(frozen=True)
class LastFailure:
    """cycle: `g1-c0`. what: the exception, or how the process ended. log: its output, if that was kept."""

    cycle: str
    rank: int
    step: int | None
    what: str
    log: Path | None

    def __str__(self) -> str:
        step = "before its first step" if self.step is None else f"at step {self.step}"
        return f"rank {self.rank} {step} of {self.cycle}: {self.what}"


def newest_failure(run: RunDirectory, *, also_of_others: bool = False) -> LastFailure | None:
    """None if no rank has failed, or only because others had. also_of_others: such a failure too."""
    found: list[tuple[tuple[int, ...], str, int, dict[str, Any]]] = []
    for path in (*run.attempts.glob("*.rank*.json"), *run.attempts.glob("*.death*.json")):
        match, record = _NAME.fullmatch(path.name), read_json(path)
        if match and record is not None and (also_of_others or not record.get("consequence")):
            order = tuple(int(number or 0) for number in match.groups()[1:4])
            found.append((order, match.group(1), int(match.group(5)), record))
    if not found:
        return None
    _, cycle, rank, record = max(found, key=lambda entry: entry[0])
    step = record.get("step")
    log = run.path / names.LOGS / cycle / f"rank{rank}.log"
    return LastFailure(cycle, rank, step, _what(record), log if log.exists() else None)


def _what(record: dict[str, Any]) -> str:
    if "fingerprint" in record:
        message = " ".join(str(record.get("message", "")).split())
        return f"{record['fingerprint']}: {message[:300]}"
    hang = record.get("hang")
    code = record.get("code")
    return how_ended(code if isinstance(code, int) else 1) + (f" after a hang ({hang})" if hang else "")


def how_ended(code: int) -> str:
    """`ended by SIGKILL` or `ended with exit code 7`; a signal is a negative code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
