"""Who is there: each worker pod's supervisor says so in the run directory, and the control pod counts.

One small file per node index below `members/`, written by its supervisor alone and read by the control pod alone. As
with leases, what counts is that the content changes, by the reader's own monotonic clock: no clocks are compared, no
modification time is read. Nothing here must survive a crash, so nothing is synced: with n worker pods it is n small
writes every third of recovery.owner_lease_s, and n reads every sixth.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.config import names
from holdfast.run_directory import RunDirectory, read_json


@dataclass(frozen=True)
class Member:
    """What one worker pod says of itself."""

    job: str
    jobset_attempt: int
    index: int
    """Of the node, which at most one live pod has."""
    pod: str
    generation: int
    """In which its launcher runs; 0 between two generations."""
    ranks: int
    """Processes of its ranks."""
    training: int
    """Those of them that are between their first step and the end of their last."""


def _folder(run: RunDirectory) -> Path:
    return run.path / names.MEMBERS


def path_of(run: RunDirectory, jobset_attempt: int, index: int) -> Path:
    """Where the worker pod with this index says that it is there; pods of an older JobSet attempt have another file."""
    return _folder(run) / f"a{jobset_attempt}-{index}.json"


class Presence:
    """`with Presence(run, me, beat_s) as presence:` says in a thread that this pod is there, until the body ends.

    beat_s: pause between two beats. What changes is said at once. A beat that fails is left out: the next may get
    through, and a pod whose storage does not answer is rightly not counted.
    """

    def __init__(self, run: RunDirectory, me: Member, beat_s: float) -> None:
        self._path = path_of(run, me.jobset_attempt, me.index)
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._said = me
        self._beat_s = beat_s
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._beat_on, name="presence", daemon=True)

    def __enter__(self) -> Presence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(self._beat_s)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def say(self, me: Member) -> None:
        """From now on say this."""
        with self._changed:
            if me != self._said:
                self._said = me
                self._changed.notify()

    def _beat_on(self) -> None:
        for count in itertools.count():
            with self._changed:
                if self._over:
                    return
                said = self._said
            with contextlib.suppress(OSError):
                self._write(json.dumps({**asdict(said), "count": count}))
            with self._changed:
                if self._said == said and not self._over:
                    self._changed.wait(self._beat_s)

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary.write_text(text)
        self._temporary.replace(self._path)


class Members:
    """The control pod's view. `look` now and then; `present` is what it saw last.

    lease_s: a pod that was not seen to change for so long is gone. Time in which the observer itself did not look does
    not count: after a pause of its own, or of the file system, everybody first gets the chance to beat again.
    """

    def __init__(
        self,
        run: RunDirectory,
        job: str,
        jobset_attempt: int,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._job = job
        self._attempt = jobset_attempt
        self._lease_s = lease_s
        self._clock = clock
        self._looked: float | None = None
        self._seen: dict[str, tuple[object, float]] = {}
        """file -> (count, seconds for which it was watched without a change)"""
        self.present: list[Member] = []

    def look(self) -> list[Member]:
        """The pods of this JobSet attempt that are there, by index."""
        found = self._read()
        # After the reads: what a slow file system takes for them is no time in which somebody could have been seen.
        now = self._clock()
        watched = 0.0 if self._looked is None else min(now - self._looked, self._lease_s / 3)
        self._looked = now
        silent: dict[str, tuple[object, float]] = {}
        present = []
        for name, (member, count) in found.items():
            before, since = self._seen.get(name, (None, 0.0))
            silent[name] = (count, 0.0 if count != before else since + watched)
            if silent[name][1] < self._lease_s:
                present.append(member)
        self._seen = silent
        self.present = sorted(present, key=lambda member: member.index)
        return self.present

    def _read(self) -> dict[str, tuple[Member, object]]:
        found = {}
        with contextlib.suppress(OSError):
            for path in _folder(self._run).glob(f"a{self._attempt}-*.json"):
                record = read_json(path) or {}
                count = record.pop("count", None)
                with contextlib.suppress(TypeError):
                    member = Member(**record)
                    if member.job == self._job:
                        found[path.name] = (member, count)
        return found


def forget(run: RunDirectory) -> None:
    """Remove what earlier pods have left behind. For the control pod, when it takes the run: no worker of its own is
    there yet, and one that were would say so again at its next beat."""
    with contextlib.suppress(OSError):
        for path in _folder(run).glob("*.json"):
            path.unlink(missing_ok=True)
