"""What a run is doing now: state, progress, newest checkpoint, last events. Read from the run directory alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.config import ConfigError, Problem, RunConfig, load_file, names
from holdfast.goodput.ledger import account
from holdfast.goodput.lines import OTHER_VERSION
from holdfast.goodput.reader import read_run
from holdfast.goodput.timeline import Event, Timeline
from holdfast.run_directory import Owner, RunDirectory, Terminal, read_json

UNREMARKABLE = ("step", "data", "stage", "persist", "checkpoint_wait", "monitored")
"""Events that come too often to be news."""
DEFAULT_LEASE_S = 30.0


@dataclass(frozen=True)
class Status:
    """A run at one moment. Ages in seconds; None where nothing has been recorded."""

    state: Literal["running", "complete", "terminal", "dead"]
    """dead: neither complete nor terminal, and no live process owns it."""
    owner: Owner | None
    terminal: Terminal | None
    step: int | None
    """Last finished step of the newest attempt that finished one. Not known either of a log of another version."""
    steps: int | None
    """Steps in all, from run.yaml."""
    attempt: str | None
    committed: int | None
    committed_age_s: float | None
    goodput: float | None
    """None: not known, since the log is of another version, which this one may misread."""
    news: tuple[tuple[float, Event], ...]
    """The last events that are not routine, oldest first, each with its age."""


def _owner(run: RunDirectory) -> Owner | None:
    try:
        return run.owner()
    except OSError as error:
        why, fix = f"its owner record cannot be read: {error}", "look at the file system"
        raise ConfigError([Problem("DIR", str(run.path), why, fix)], "no status") from None


def read_status(run_dir: Path, most_news: int = 10) -> Status:
    """The status of a run directory. Takes up to recovery.owner_lease_s if the owner is on another machine."""
    run = RunDirectory(run_dir)
    timeline = read_run(run_dir)
    foreign = any(anomaly.kind in OTHER_VERSION for anomaly in timeline.anomalies)
    if foreign:
        timeline = Timeline()  # nothing in it is believed, as in a report; the rest of the run directory is
    ledger = account(timeline)
    attempt = ledger.attempts[-1] if ledger.attempts else None
    config, owner = _config(run_dir), _owner(run)
    committed = newest_committed(run.checkpoints)
    now = time.time()
    news = timeline.named(*(name for name in timeline.columns.by_name if name not in UNREMARKABLE))
    news.sort(key=lambda event: event.end)
    return Status(
        state=_state(run, owner, config.recovery.owner_lease_s if config else DEFAULT_LEASE_S),
        owner=owner,
        terminal=run.terminal(),
        step=next((max(a.steps) for a in reversed(ledger.attempts) if a.steps), None),
        steps=config.training.steps if config else None,
        attempt=str(attempt) if attempt else None,
        committed=committed,
        committed_age_s=None if committed is None else _commit_age(timeline, committed, now),
        goodput=None if foreign else ledger.goodput_total,
        news=tuple((max(0.0, now - timeline.origin - event.end), event) for event in news[-most_news:]),
    )


def newest_committed(checkpoints: Path) -> int | None:
    """The newest step whose folder holds a readable commit marker."""
    found = []
    for marker in checkpoints.glob(f"{names.STEP_PREFIX}*/{names.COMMITTED}"):
        step = names.step_of(marker.parent.name)
        if step is not None and read_json(marker) is not None:
            found.append(step)
    return max(found, default=None)


def _state(
    run: RunDirectory, owner: Owner | None, lease_s: float
) -> Literal["running", "complete", "terminal", "dead"]:
    if run.complete() is not None:
        return "complete"
    if run.terminal() is not None:
        return "terminal"
    return "running" if owner is not None and run.owner_lives(owner, lease_s) else "dead"


def _config(run_dir: Path) -> RunConfig | None:
    try:
        return load_file(run_dir / names.RUN_YAML)
    except ConfigError:
        return None


def _commit_age(timeline: Timeline, step: int, now: float) -> float | None:
    times = [event.end for event in timeline.named("commit") if event.whole("step") == step]
    return max(0.0, now - timeline.origin - max(times)) if times else None
