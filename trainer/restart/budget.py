"""What restarts may cost: how many without progress, how many per hour, how much lost time. Judged by the control pod.

It looks at what others write, the list of attempts, the names of failures and the newest committed step, and keeps its
own record beside them: attempts/budget.json. So a new control pod goes on counting where the last one stopped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from holdfast import lineage
from holdfast.config import names
from holdfast.config.recovery import Recovery
from holdfast.last_failure import cycle_of_record, newest_failure
from holdfast.lineage import Begun
from holdfast.run_directory import Owner, RunDirectory, Terminal, read_json, write_atomically

LOOK_S = 2.0
"""How often the records are read: two small files of the shared file system."""
LIST_S = 20.0
"""How often the names of failures are listed: in a large job thousands of files."""
BARREN_S = 60.0
"""A cycle in which no attempt began counts as one without progress only so long after the restart before it. A network
that is away for some minutes makes many such cycles, and is to be waited for; within the hour all of them count."""
HOUR_S = 3600.0
MOST_COMMITS = 100
"""Commits whose time is remembered; a restart goes back to one of the last few."""


@dataclass
class Restart:
    """One attempt but the first. at: when it was first seen; wall-clock seconds, since it must outlive the machine.
    committed: the newest committed step then. lost_s: None until it has been restored."""

    attempt: str
    at: float
    committed: int
    lost_s: float | None = None


@dataclass
class Book:
    """What is kept in budget.json. known: attempts that have been seen, counted or not, and cycles none of whose
    attempts began. began: when the first was seen, for work that no commit holds. commits: step -> when it was first
    seen committed."""

    known: list[str] = field(default_factory=list)
    began: float = 0.0
    progress: int = 0
    """The newest committed step at the last restart that had a newer one, or at the last start by hand."""
    idle: list[str] = field(default_factory=list)
    """Restarts since then."""
    lost_s: float = 0.0
    """By restarts that are no longer listed."""
    restarts: list[Restart] = field(default_factory=list)
    commits: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, run: RunDirectory) -> Book | None:
        """The book of a run, or None if there is none that can be read."""
        stored = read_json(run.attempts / names.BUDGET)
        try:
            return None if stored is None else cls(**stored | {"restarts": [Restart(**r) for r in stored["restarts"]]})
        except (KeyError, TypeError):
            return None


class Budget:
    """One per control pod. `look` as often as you like."""

    def __init__(
        self, run: RunDirectory, owner: Owner, limits: Recovery, clock: Callable[[], float] = time.time
    ) -> None:
        self._run = run
        self._owner = owner
        self._limits = limits
        self._clock = clock
        self._next_look = self._next_list = 0.0
        book = Book.read(run)
        self._book = book or Book(known=[entry.attempt for entry in self._begun() or ()], began=clock())
        if book is None or owner.generation == owner.incarnation:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Started by hand: that is no restart, and the time until then was nobody's loss."""
        book, now, committed = self._book, self._clock(), self._committed()
        book.progress, book.idle, book.began, book.commits = committed, [], now, {str(committed): now}

    def look(self) -> Terminal | None:
        """Count what is new; write TERMINAL and return it if a limit is passed. Raises StaleGeneration.

        Storage that takes nothing now, a full disk for one, ends no run: the next look counts the same.
        """
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_S
        listing = time.monotonic() >= self._next_list
        if listing:
            self._next_list = time.monotonic() + LIST_S
        try:
            return self.count(listing=listing)
        except OSError as error:
            logging.warning("restarts could not be counted: %s", error)
            return None

    def count(self, *, listing: bool = True) -> Terminal | None:
        """`look`, whatever the time. listing: look for cycles in which no attempt began, too. Raises OSError too."""
        failed = self._failed_cycles() if listing else set()  # before the list of attempts: what began is not barren
        before = json.dumps(asdict(self._book))
        begun = self._begun()
        if begun is None:
            return None
        now, committed = self._clock(), self._committed()
        self._book.commits.setdefault(str(committed), now)
        self._count_barren(failed - {_cycle_of(entry.attempt) for entry in begun}, now, committed)
        for entry in begun:
            if entry.attempt not in self._book.known:
                self._count(entry, now, committed)
            self._restored(entry, now)
        if begun and begun[-1].start is not None:
            self._went_back_to(begun[-1].start)
        self._forget(now)
        after = json.dumps(asdict(self._book))
        if after != before:
            self._run.require_generation(self._owner.generation)
            write_atomically(self._run.attempts / names.BUDGET, after)
        return self._judge(now)

    def _failed_cycles(self) -> set[str]:
        """Cycles of the launcher, `g1-c4`, in which a rank has failed or died."""
        files = self._run.attempts.glob(f"g{self._owner.generation}-c*")
        return {cycle for path in files if (cycle := cycle_of_record(path.name)) is not None}

    def _count_barren(self, cycles: set[str], now: float, committed: int) -> None:
        """Those none of whose attempts has begun: without a process group no rank puts one on the list. What they cost
        counts with the next one that begins."""
        book = self._book
        new = cycles - {f"g{self._owner.incarnation}-c0", *map(_cycle_of, book.known)}
        for cycle in sorted(new, key=lambda name: int(name.rpartition("c")[2])):
            soon = any(restart.at > now - BARREN_S for restart in book.restarts)
            book.known.append(cycle)
            book.restarts.append(Restart(cycle, now, committed, 0.0))
            self._progress(cycle, committed, idle=not soon)

    def _count(self, entry: Begun, now: float, committed: int) -> None:
        book = self._book
        book.known.append(entry.attempt)
        if entry.adopted or entry.attempt == f"g{self._owner.incarnation}-c0-r0":
            return
        cycle = _cycle_of(entry.attempt)
        barren = next((restart for restart in book.restarts if restart.attempt == cycle), None)
        if barren is not None:  # it has begun after all: one restart, and not two
            barren.attempt, barren.lost_s = entry.attempt, None
            book.idle = [entry.attempt if name == cycle else name for name in book.idle]
            return
        book.restarts.append(Restart(entry.attempt, now, committed))
        self._progress(entry.attempt, committed)

    def _progress(self, restart: str, committed: int, *, idle: bool = True) -> None:
        book = self._book
        if committed > book.progress:
            book.progress, book.idle = committed, []
        elif idle:
            book.idle.append(restart)

    def _restored(self, entry: Begun, now: float) -> None:
        """An attempt that says where it goes on has cost what was done since that step was committed."""
        restart = next((r for r in self._book.restarts if r.attempt == entry.attempt and r.lost_s is None), None)
        if restart is not None and entry.start is not None:
            since = self._book.began if entry.start == 0 else self._book.commits.get(str(entry.start), restart.at)
            restart.lost_s = max(0.0, now - since)

    def _went_back_to(self, start: int) -> None:
        """An attempt that goes on from an older step (resume.step, a damaged newer one) makes progress from there."""
        book = self._book
        if start < book.progress:
            book.progress = start
            book.commits = {step: at for step, at in book.commits.items() if int(step) <= start}

    def _forget(self, now: float) -> None:
        book = self._book
        old = [r for r in book.restarts if r.at < now - HOUR_S and r.lost_s is not None]
        book.lost_s += sum(r.lost_s or 0.0 for r in old)
        book.restarts = [r for r in book.restarts if r not in old]
        book.commits = dict(list(book.commits.items())[-MOST_COMMITS:])

    def _judge(self, now: float) -> Terminal | None:
        book, limits = self._book, self._limits
        recent = [r.attempt for r in book.restarts if r.at >= now - HOUR_S]
        lost_s = book.lost_s + sum(r.lost_s or 0.0 for r in book.restarts)
        why = None
        if len(book.idle) >= limits.max_restarts_without_progress:
            why = (
                f"{len(book.idle)} restarts without a newer commit than step {book.progress} "
                f"(recovery.max_restarts_without_progress={limits.max_restarts_without_progress}): {_some(book.idle)}"
            )
        elif len(recent) > limits.max_restarts_per_hour:
            limit = f"recovery.max_restarts_per_hour={limits.max_restarts_per_hour}"
            why = f"{len(recent)} restarts within an hour ({limit}): {_some(recent)}"
        elif limits.max_lost_s is not None and lost_s > limits.max_lost_s:
            why = f"restarts have cost {lost_s:.0f} s in all (recovery.max_lost_s={limits.max_lost_s:g})"
        if why is None:
            return None
        terminal = Terminal(names.EXIT_GIVE_UP, f"{why}. {self._last_failure()}".strip(), attempt=book.known[-1])
        self._run.write_terminal(terminal, self._owner.generation)
        return terminal

    def _last_failure(self) -> str:
        failure = newest_failure(self._run) or newest_failure(self._run, also_of_others=True)
        return "" if failure is None else f"The last failure: {failure}"

    def _begun(self) -> list[Begun] | None:
        try:
            return lineage.read(self._run)
        except OSError:
            return None  # the ranks will say so, and the next look may be luckier

    def _committed(self) -> int:
        """The newest committed step, by the name that is kept for people: close enough to count by, and one read."""
        try:
            return names.step_of((self._run.checkpoints / names.LATEST).read_text().strip()) or 0
        except OSError:
            return 0


def _cycle_of(name: str) -> str:
    """`g1-c4` of the attempt g1-c4-r0, or of itself."""
    return name.partition("-r")[0]


def _some(attempts: list[str]) -> str:
    shown = ", ".join(attempts[-5:])
    return shown if len(attempts) <= 5 else f"..., {shown}"
