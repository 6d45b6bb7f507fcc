"""One segment of an event log, line by line -> columns. Tolerant: whatever a crash leaves behind can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.goodput.columns import Codes, Floats, Integers, sort_fields
from holdfast.goodput.event import Process
from holdfast.goodput.events import SCHEMA, segment_of

_MOST_SECONDS = 1e11
"""A clock that runs for 3000 years is a damaged line, and would swallow the run's real span."""

OTHER_VERSION = ("newer_schema", "unknown_schema")
"""Kinds of anomaly of a log that may mean something else than this version thinks."""

Finding = tuple[str, str]
"""(kind, text) of an anomaly."""


@dataclass
class Rows:
    """The events of one name in one segment, in the order written.

    t: start, on the monotonic clock of the process. dur: seconds. whole, real, rest: as in Spans; rest indexes
    Segment.rests.
    """

    t: Floats
    dur: Floats
    whole: dict[str, Integers]
    real: dict[str, Floats]
    rest: Codes | None


@dataclass
class Segment:
    """One segment: its anchor, the number of its events by name, the events themselves where they have been read, and
    what was wrong with it."""

    file: str
    anchor: dict[str, Any]
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    rests: list[Mapping[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def parse(file: str, content: bytes) -> tuple[Segment | None, list[Finding]]:
    """The segment, or None and why it cannot be used. file: its name."""
    if not content:
        return None, [("empty_file", "is empty: the process ended before its first line")]
    complete, _, tail = content.rpartition(b"\n")
    records, bad = _records(complete.split(b"\n") if complete else [])
    findings = [("bad_line", f"{bad} unreadable line(s) left out")] if bad else []
    if tail:
        # Killed while writing. Only the newline may be missing.
        last, torn = _records([tail])
        records += last
        if torn:
            findings.append(("torn_line", "the last line is cut off: the process was killed while writing"))
    if not records or process_of(file, records[0]) is None:
        return None, [*findings, ("no_anchor", "has no anchor line; its times mean nothing, so it is left out")]
    findings += _schema_findings(records[0])
    segment = Segment(file, records[0])
    invalid = _fill(segment, records[1:])
    if invalid:
        findings.append(("bad_line", f"{invalid} line(s) without a valid time, name or duration left out"))
    segment.findings = findings
    return segment, []


def process_of(file: str, anchor: Mapping[str, Any]) -> Process | None:
    """The process that an anchor names; None if it is none. file: any segment of it."""
    wall, mono = _number(anchor.get("wall")), _number(anchor.get("mono"))
    if anchor.get("name") != "anchor" or wall is None or wall < 0 or mono is None:
        return None  # no clock was before 1970

    def whole(key: str) -> int:
        value = anchor.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    return Process(
        file=segment_of(file)[0],
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


def _schema_findings(anchor: Mapping[str, Any]) -> list[Finding]:
    schema = anchor.get("schema")
    if schema == SCHEMA and not isinstance(schema, bool):
        return []
    if isinstance(schema, int) and schema > SCHEMA:
        return [(OTHER_VERSION[0], f"has schema {schema}; this version knows {SCHEMA} and may misread it")]
    return [(OTHER_VERSION[1], f"has schema {schema!r}; this version knows {SCHEMA} and may misread it")]


def _records(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects among these lines, and how many lines are something else. Empty lines do not count."""
    lines = [line for line in lines if line.strip(b"\0 \t\r")]
    try:
        # All lines at once take a third of the time of one after the other.
        records = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines) and all(type(record) is dict for record in records):
            return records, 0
    except (ValueError, RecursionError):
        pass
    records = [record for record in map(_record, lines) if record is not None]
    return records, len(lines) - len(records)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Compared before it becomes a float, which an integer of 400 digits cannot. NaN and infinity are not less either.
    return float(value) if abs(value) < _MOST_SECONDS else None


def _fill(segment: Segment, records: Sequence[dict[str, Any]]) -> int:
    """Sort records into the columns of a segment; how many are no events. Anchors after the first say nothing new."""
    times: dict[str, list[tuple[float, float]]] = {}
    fields: dict[str, list[dict[str, Any]]] = {}
    invalid = 0
    for record in records:
        name = record.pop("name", None)
        t, duration = _number(record.pop("t", None)), _number(record.pop("dur", 0.0))
        if t is None or duration is None or duration < 0 or not isinstance(name, str):
            invalid += name != "anchor"
            continue
        times.setdefault(name, []).append((t, duration))
        fields.setdefault(name, []).append(record)
    for name, found in times.items():
        starts, durations = (np.array(column) for column in zip(*found, strict=True))
        whole, real, rest = sort_fields(fields[name], segment.rests)
        segment.counts[name] = len(found)
        segment.rows[name] = Rows(starts, durations, whole, real, rest)
    return invalid
