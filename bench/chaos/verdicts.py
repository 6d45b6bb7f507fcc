"""What became of each kill: open until the next attempt has said what it restored."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.chaos.attempt import Attempt
from bench.chaos.records import Kill
from bench.chaos.watch import Watch


class Verdicts:
    """Those of one run. Whatever the watch complained of since the last verdict counts against the kill."""

    def __init__(self, watch: Watch, report: Callable[[Kill], None]) -> None:
        """report: gets each kill once it is judged."""
        self._watch = watch
        self._report = report
        self._open: list[tuple[Kill, float, frozenset[int]]] = []
        self._told = 0

    def await_restore(self, kill: Kill, since: float) -> None:
        """The verdict on the kill waits for the next restore. since: monotonic time from which its seconds count."""
        self._open.append((kill, since, frozenset(self._watch.seen)))

    def of_restore(self, attempt: Attempt, newest: int) -> None:
        """Close the open ones if the attempt has said from where it went on; it must be `newest`, on every rank."""
        if not self._open:
            return
        restored = attempt.restored()
        if not restored:
            return
        for kill, since, committed in self._open:
            kill.resumed_at = min(restored)
            kill.lost_commits = sum(step > kill.resumed_at for step in committed)
            if restored != {newest}:
                kill.why.append(f"{attempt} went on from step {sorted(restored)}; {newest} was committed")
            self.give(kill, since)
        self._open.clear()

    def close(self) -> None:
        """The run is complete and nothing will be restored any more."""
        for kill, since, _ in self._open:
            kill.resumed_at = self._watch.highest
            self.give(kill, since)
        self._open.clear()

    def abandon(self, why: str) -> None:
        """Nothing was restored after the open ones, and nothing will be."""
        for kill, since, _ in self._open:
            kill.why.append(why)
            self.give(kill, since)
        self._open.clear()

    def give(self, kill: Kill, since: float) -> None:
        """The verdict on a kill."""
        kill.why += self.unsaid()
        kill.seconds = round(time.monotonic() - since, 2)
        kill.ok = not kill.why and not kill.hang and not kill.lost_commits and kill.resumed_at is not None
        self._report(kill)

    def unsaid(self) -> list[str]:
        """What was wrong since the last verdict."""
        found = self._watch.complaints[self._told :]
        self._told += len(found)
        return found
