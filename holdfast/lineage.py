"""Which attempts a run went through and from which step each went on: the fence against work of abandoned ones.

One file, `attempts/lineage.json`, written by rank 0 of the newest attempt only. A save belongs to the run's history if
its attempt is in it and no later attempt started below the saved step. An attempt that is not the last one must not
commit, prune or write markers any more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from holdfast.config import names
from holdfast.run_directory import RunDirectory, read_json, write_atomically


class StaleAttempt(Exception):
    """This attempt was aborted and a newer one has begun; what it wanted to do is refused."""


@dataclass(frozen=True)
class Begun:
    """An attempt that has begun. start: the step from which it went on; None until it knows."""

    attempt: str
    start: int | None


def read(run: RunDirectory) -> list[Begun]:
    """Attempts of the run in the order in which they began."""
    record = read_json(run.attempts / names.LINEAGE) or {}
    return [Begun(str(entry["attempt"]), entry["start"]) for entry in record.get("attempts", [])]


def cycles(run: RunDirectory, generation: int) -> int:
    """How many attempts of a generation have begun. torchrun does not count the starts of its ranks."""
    return sum(entry.attempt.startswith(f"g{generation}-c") for entry in read(run))


def begin(run: RunDirectory, attempt: str, generation: int) -> None:
    """Make `attempt` the current one, before it looks at any checkpoint. Rank 0 only. Raises StaleGeneration."""
    run.require_generation(generation)
    _write(run, [*(entry for entry in read(run) if entry.attempt != attempt), Begun(attempt, None)])


def started(run: RunDirectory, attempt: str, step: int) -> None:
    """Record that `attempt` goes on from `step`. Rank 0 only, before its first save. Raises StaleAttempt."""
    require_current(run, attempt)
    _write(run, [*read(run)[:-1], Begun(attempt, step)])


def require_current(run: RunDirectory, attempt: str) -> None:
    """Raise StaleAttempt unless `attempt` is the newest that has begun."""
    begun = read(run)
    if not begun or begun[-1].attempt != attempt:
        newest = begun[-1].attempt if begun else "nothing"
        raise StaleAttempt(f"attempt {attempt} was aborted: {newest} is the current one, and this one changes nothing")


def in_history(begun: list[Begun], attempt: str, step: int) -> bool:
    """Whether what `attempt` saved at `step` lies on the way to the present: nobody went back behind it later."""
    places = [index for index, entry in enumerate(begun) if entry.attempt == attempt and entry.start is not None]
    if not places:
        return False
    return all(entry.start is None or entry.start >= step for entry in begun[places[0] + 1 :])


def _write(run: RunDirectory, begun: list[Begun]) -> None:
    write_atomically(run.attempts / names.LINEAGE, json.dumps({"attempts": [asdict(entry) for entry in begun]}))
