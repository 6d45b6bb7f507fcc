"""Event logs of a run directory -> one timeline in seconds. Tolerant: whatever a crash leaves behind can be read.

What cannot be used is left out and flagged as an anomaly; nothing here raises for a bad log.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config import names
from holdfast.goodput.clocks import StepEnd, clock_shifts
from holdfast.goodput.events import SCHEMA
from holdfast.goodput.timeline import Anomaly, Event, Process, Timeline


@dataclass(frozen=True)
class _Log:
    """One file, times still on its process's monotonic clock: (start, duration, name, fields)."""

    process: Process
    lines: tuple[tuple[float, float, str, dict[str, Any]], ...]


def read_run(run_dir: Path) -> Timeline:
    """The timeline of a run directory. Empty if nothing has been logged."""
    logs: list[_Log] = []
    anomalies: list[Anomaly] = []
    for path in sorted((run_dir / names.EVENTS).glob("*.jsonl")):
        log, found = _read_file(path)
        anomalies += found
        if log is not None:
            logs.append(log)
    return _merge(logs, anomalies)


def _merge(logs: list[_Log], anomalies: list[Anomaly]) -> Timeline:
    """Put all processes on one clock: exact within a boot, by wall anchors (and shared steps) between boots."""
    if not logs:
        return Timeline(anomalies=tuple(anomalies))
    processes = [log.process for log in logs]
    shifts, found = clock_shifts(processes, [end for log in logs for end in _step_ends(log)])
    starts = [line[0] + shifts[log.process.boot] for log in logs for line in log.lines]
    origin = min(starts) if starts else processes[0].mono + shifts[processes[0].boot]
    events = []
    for log in logs:
        shift = shifts[log.process.boot]
        for t, duration, name, fields in log.lines:
            start = (t + shift) - origin
            events.append(Event(start, start + duration, name, fields, log.process))
    events.sort(key=lambda event: (event.start, event.end))
    reference = next(p for p in processes if shifts[p.boot] == 0.0)
    return Timeline(
        events=tuple(events),
        processes=tuple(processes),
        anomalies=(*anomalies, *found),
        origin=reference.wall - reference.mono + origin,
    )


def _step_ends(log: _Log) -> list[StepEnd]:
    p = log.process
    if p.source != "rank":
        return []
    return [
        StepEnd(p.boot, (p.generation, p.cycle, fields["step"]), t + duration)
        for t, duration, name, fields in log.lines
        if name == "step" and "error" not in fields and isinstance(fields.get("step"), int)
    ]


def _read_file(path: Path) -> tuple[_Log | None, list[Anomaly]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        return None, [Anomaly("unreadable", path.name, f"cannot be read: {error.strerror}")]
    if not content:
        return None, [Anomaly("empty_file", path.name, "is empty: the process ended before its first line")]
    complete, _, tail = content.rpartition(b"\n")
    records, bad = _records(complete.split(b"\n") if complete else [])
    anomalies = [Anomaly("bad_line", path.name, f"{bad} unreadable line(s) left out")] if bad else []
    if tail:
        # Killed while writing. Only the newline may be missing.
        last, torn = _records([tail])
        records += last
        if torn:
            why = "the last line is cut off: the process was killed while writing"
            anomalies.append(Anomaly("torn_line", path.name, why))
    process = _process(path.name, records[0]) if records else None
    if process is None:
        why = "has no anchor line; its times mean nothing, so it is left out"
        return None, [*anomalies, Anomaly("no_anchor", path.name, why)]
    schema = records[0].get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        why = f"has schema {schema}; this version knows {SCHEMA} and may misread it"
        anomalies.append(Anomaly("newer_schema", path.name, why))
    lines = [line for line in map(_line, records[1:]) if line is not None]
    if len(lines) < len(records) - 1:
        why = f"{len(records) - 1 - len(lines)} line(s) without a valid time, name or duration left out"
        anomalies.append(Anomaly("bad_line", path.name, why))
    return _Log(process, tuple(lines)), anomalies


def _records(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects among these lines, and how many lines are something else. Empty lines do not count."""
    records, bad = [], 0
    for line in lines:
        if not line.strip(b"\0 \t\r"):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            bad += 1
    return records, bad


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A clock that runs for 3000 years is a damaged line, and would swallow the run's real span.
    return float(value) if math.isfinite(value) and abs(value) < 1e11 else None


def _line(record: dict[str, Any]) -> tuple[float, float, str, dict[str, Any]] | None:
    t, duration, name = _number(record.get("t")), _number(record.get("dur", 0.0)), record.get("name")
    if t is None or duration is None or duration < 0 or not isinstance(name, str):
        return None
    return t, duration, name, {key: value for key, value in record.items() if key not in ("t", "dur", "name")}


def _process(file: str, anchor: dict[str, Any]) -> Process | None:
    wall, mono = _number(anchor.get("wall")), _number(anchor.get("mono"))
    if anchor.get("name") != "anchor" or wall is None or mono is None:
        return None

    def whole(key: str) -> int:
        value = anchor.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    return Process(
        file=file,
        source=str(anchor.get("source", "")),
        boot=str(anchor.get("boot") or anchor.get("host") or file),
        wall=wall,
        mono=mono,
        rank=whole("rank") if "rank" in anchor else None,
        world_size=whole("world_size"),
        generation=whole("generation"),
        cycle=whole("cycle"),
        pod=str(anchor.get("pod") or ""),
        node=str(anchor.get("node") or ""),
        role=str(anchor.get("role") or ""),
    )
