"""What a seed stands for: whom it kills and when. And what the run was doing at that moment."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoint_folder import DCP_METADATA, STATE, look
from holdfast.config import names

RANK0, RANK1, WRITER, WRITERS, ALL = "rank 0", "rank 1", "one writer", "both writers", "all"
VICTIMS = (RANK0, RANK1, WRITER, WRITERS, ALL)
STARTING, RESTORE, COMPUTE, STAGE, WRITE = "start", "restore", "compute", "stage", "write"
ACKNOWLEDGE, COMMIT, PRUNE, FINISH = "acknowledge", "commit", "prune", "finish"
PHASES = (STARTING, RESTORE, COMPUTE, STAGE, WRITE, ACKNOWLEDGE, COMMIT, PRUNE, FINISH)
AIMED_AT = (RESTORE, STAGE, WRITE, ACKNOWLEDGE, COMMIT, PRUNE, FINISH)
Aim = Literal["start-up", "save cycle", "phase"]


@dataclass(frozen=True)
class Plan:
    """One kill, as far as the seed decides it. Two kills in three fall uniformly into a save cycle or a start-up; one
    in three waits for a phase, since some last a millisecond and would be hit too seldom.

    writer: the rank whose writer dies. saves: commits to wait for first. fraction: of the save cycle, of the start-up
    or, in a phase, of 4 ms that pass first.
    """

    seed: int
    victim: str
    writer: int
    aim: Aim
    phase: str
    saves: int
    fraction: float
    in_job: bool
    """Whether the run goes on as layer 2 does it, in the same generation, or with a new one."""
    order: float
    """Seed of the order in which the processes of one kill die."""
    unnoticed_s: float
    """So long the rest of the run lives on; a launcher looks ten times a second."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """The same for the same seed."""
        chance = random.Random(f"chaos-{seed}")
        victim = chance.choice(VICTIMS)
        aims: Sequence[Aim] = (
            ("save cycle", "phase") if victim in (WRITER, WRITERS) else ("save cycle", "start-up", "phase")
        )
        return cls(
            seed=seed,
            victim=victim,
            writer=chance.randrange(2),
            aim=chance.choice(aims),
            phase=chance.choice([phase for phase in AIMED_AT if phase != RESTORE or victim in (RANK0, RANK1, ALL)]),
            saves=chance.choice((0, 1, 1, 2)),
            fraction=chance.random(),
            in_job=chance.random() < 0.5,
            order=chance.random(),
            unnoticed_s=chance.choice((0.0, 0.1, 0.3)) * chance.random(),
        )


@dataclass(frozen=True)
class Sight:
    """The checkpoint folder at one moment: committed steps, and the files of every folder of an unfinished save."""

    committed: tuple[int, ...]
    unfinished: Mapping[str, frozenset[str]] = field(default_factory=dict)
    latest: str = ""

    @classmethod
    def of(cls, folder: Path) -> Sight:
        """Look now."""
        found = look(folder)
        return cls(
            found.committed, {name: _files(folder / name) for name in found.unfinished}, _text(folder / names.LATEST)
        )

    @property
    def newest(self) -> int:
        """The newest committed step, 0 if none."""
        return max(self.committed, default=0)


def phase_of(
    sight: Sight, events: Iterable[dict[str, Any]], *, attempt: str, before: Iterable[str], keep: int, steps: int
) -> str:
    """What the run was doing, by its checkpoint folder and the events of rank 0.

    attempt: the one that runs. before: unfinished folders that it found when it began. keep: checkpoints that
    retention wants. steps: length of the run.
    """
    stage = _Stage.of(events)
    if not stage.trains:
        return RESTORE if stage.opened else STARTING
    ours = {name: files for name, files in sight.unfinished.items() if name not in set(before)}
    in_flight = {name: files for name, files in ours.items() if _step(name) > sight.newest}
    for name, files in in_flight.items():
        if names.step_of(name) is not None:
            return COMMIT  # it has its final name and no marker yet
        if f".{attempt}-" in name:
            return _of_partial(files)
    if sight.committed and sight.latest != names.step_folder(sight.newest):
        return COMMIT
    if len(sight.committed) > keep or any(names.step_of(name) is not None for name in ours):
        return PRUNE
    if stage.staged > max(sight.newest, stage.failed):
        return STAGE
    return FINISH if sight.newest >= steps else COMPUTE


@dataclass
class _Stage:
    """opened: the dataset is, so that checkpoints come next. trains: the restore is over."""

    opened: bool = False
    trains: bool = False
    staged: int = 0
    failed: int = 0

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> _Stage:
        found = cls()
        for event in events:
            name = event["name"]
            found.opened |= name == "data_open"
            found.trains |= name in ("restore", "data", "step")
            if name == "stage":
                found.staged = int(event["step"])
            if name == "save_failed":
                found.failed = int(event["step"])
        return found


def _of_partial(files: frozenset[str]) -> str:
    if {STATE, DCP_METADATA} & files or any(name.startswith(names.PENDING_PREFIX) for name in files):
        return COMMIT
    acknowledged = sum(re.fullmatch(r"rank-\d+\.json", name) is not None for name in files)
    return (WRITE, ACKNOWLEDGE, COMMIT)[min(acknowledged, 2)]


def _step(folder: str) -> int:
    digits = folder.removeprefix(names.STEP_PREFIX)[:8]
    return int(digits) if digits.isdigit() else 0


def _files(folder: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in folder.iterdir())
    except OSError:
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
