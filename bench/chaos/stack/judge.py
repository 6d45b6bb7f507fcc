"""Whether a job kept every promise: what it left behind, held against its schedule. No process, no waiting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.chaos.stack.job import Ran
from bench.chaos.stack.schedule import Schedule
from bench.chaos.stack.source import END_CODES, noticed
from holdfast.config import names
from holdfast.goodput.ledger import MOST_UNATTRIBUTED, Ledger, account
from holdfast.goodput.reader import read_run
from holdfast.goodput.timeline import Timeline
from holdfast.run_directory import RunDirectory

CLOSURE = 1e-9
"""Buckets sum to the wall time up to this part of it."""


@dataclass
class Findings:
    """What was found in a job's folder. struck: ids of the faults that fired. restarts: attempts after the first one.
    unattributed: part of the wall time, 0 to 1. wrong: every promise that was not kept; empty if all were."""

    end: str
    struck: tuple[str, ...] = ()
    restarts: int = 0
    unattributed: float = 0.0
    wrong: list[str] = field(default_factory=list)


def judge(schedule: Schedule, ran: Ran, complaints: Sequence[str]) -> Findings:
    """All but the weights. complaints: of the watch over the checkpoint folder."""
    run = RunDirectory(ran.run_dir)
    found = Findings(_end(schedule, ran, run))
    found.wrong += _wrong_end(schedule, ran, run, found.end)
    found.wrong += [f"left alive: {process}" for process in ran.left]
    found.wrong += complaints
    if ran.run_dir.is_dir():
        timeline = read_run(ran.run_dir)
        ledger = account(timeline)
        found.struck = tuple(f.id for f in schedule.config().faults if (run.faults / f"{f.id}.json").exists())
        found.restarts = max(0, len(ledger.attempts) - 1)
        found.unattributed = ledger.buckets["unattributed"] / ledger.wall_s if ledger.wall_s else 0.0
        found.wrong += [*lost_commits(timeline, ledger), *not_closed(ledger)]
        found.wrong += _undetected(schedule, found, timeline, ledger)
    else:
        found.wrong += [f"fault {one.id} never struck" for one in schedule.expected.detected if one.certain]
    return found


def _end(schedule: Schedule, ran: Ran, run: RunDirectory) -> str:
    if ran.code is None:
        return "hang"
    complete, terminal = run.complete(), run.terminal()
    if terminal is not None:
        return f"terminal {terminal.code}"
    if ran.code == names.EXIT_COMPLETE and complete is not None and complete.get("step") == schedule.steps:
        return "complete"
    return f"exit {ran.code}"


def _wrong_end(schedule: Schedule, ran: Ran, run: RunDirectory, end: str) -> Iterator[str]:
    if ran.code is None:
        yield f"it had not ended after {ran.seconds:.0f} s"
        return
    terminal = run.terminal()
    wanted = f"terminal {END_CODES['terminal']}" if schedule.expected.end == "terminal" else "complete"
    if end != wanted:
        why = f": {' '.join(terminal.reason.split())[:300]}" if terminal is not None else ""
        yield f"it ended as {end}, not as {wanted}{why}"
    elif ran.code != END_CODES[schedule.expected.end]:
        yield f"exit code {ran.code} although the run is {end}"


def lost_commits(timeline: Timeline, ledger: Ledger) -> Iterator[str]:
    """Attempts that went on from less than what was committed when they began. One that says which committed step it
    passed over, and why, has lost nothing silently."""
    commits = timeline.named("commit")
    for attempt in ledger.attempts:
        before = max((commit.whole("step") or 0 for commit in commits if commit.end <= attempt.begin), default=0)
        start = attempt.started_from
        if start is not None and start < before and not attempt.points("skipped"):
            yield f"{attempt} went on from step {start}, and step {before} was committed before it began"


def not_closed(ledger: Ledger) -> Iterator[str]:
    """A ledger whose buckets do not sum to the wall time, or that does not say why it knows too little."""
    total = math.fsum(ledger.buckets.values())
    if abs(total - ledger.wall_s) > CLOSURE * max(ledger.wall_s, 1.0):
        yield f"the ledger's buckets sum to {total!r} s, the wall time is {ledger.wall_s!r} s"
    negative = [bucket for bucket, seconds in ledger.buckets.items() if seconds < 0]
    if negative:
        yield f"negative seconds in {', '.join(negative)}"
    share = ledger.buckets["unattributed"] / ledger.wall_s if ledger.wall_s else 0.0
    if share > MOST_UNATTRIBUTED and not any(anomaly.kind == "unattributed" for anomaly in ledger.anomalies):
        yield f"{share:.1%} of the wall time is unattributed, and the ledger does not say why"


def _undetected(schedule: Schedule, found: Findings, timeline: Timeline, ledger: Ledger) -> Iterator[str]:
    over = found.end.startswith("terminal")
    for one in schedule.expected.detected:
        if one.id not in found.struck:
            if one.certain and not over:
                yield f"fault {one.id} never struck"
        elif not noticed(one, timeline, ledger):
            yield f"fault {one.id} struck, and nothing noticed it ({one.detected_by})"
