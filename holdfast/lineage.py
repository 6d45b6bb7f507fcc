"""Which attempts a run went through and from which step each went on: the fence against work of abandoned ones.

One file, `attempts/lineage.json`, written by rank 0 of the newest attempt only. A save belongs to the run's history if
its attempt is in it and no later attempt started below the saved step. An attempt that is not the last one must not
commit, prune or write markers any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.config import names
from holdfast.run_directory import RunDirectory, write_atomically


class StaleAttempt(Exception):
    """This attempt was aborted and a newer one has begun; what it wanted to do is refused."""


@dataclass(frozen=True)
class Begun:
    """An attempt that has begun. start: the step from which it went on; None until it knows. adopted: it is known from
    what it saved only, and may have run in another run directory under a name that is given here again."""

    attempt: str
    start: int | None
    adopted: bool = False


def read(run: RunDirectory) -> list[Begun]:
    """Attempts of the run in the order in which they began; none where no attempt has begun yet.

    Raises OSError if the list is there and cannot be read: taken for an empty one, it would make a stranger of every
    committed step.
    """
    path = run.attempts / names.LINEAGE
    try:
        return [_entry(entry) for entry in json.loads(path.read_text())["attempts"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        why = f"{error.strerror or error}"
    except (ValueError, KeyError, TypeError) as error:
        why = f"it is no list of attempts ({error!r})"
    raise OSError(
        f"{path}: the list of the run's attempts cannot be read: {why}. Nothing is restored or committed without it. "
        "If the storage has recovered, start again; if it is damaged, restore the file from a copy, or delete it: all "
        "committed steps then count as this run's history."
    )


def _entry(stored: dict[str, Any]) -> Begun:
    """Raises KeyError, TypeError or ValueError if it is not an entry."""
    attempt, start, adopted = stored["attempt"], stored["start"], stored.get("adopted", False)
    if not isinstance(attempt, str) or not (start is None or type(start) is int) or not isinstance(adopted, bool):
        raise ValueError(f"{stored} is no attempt")
    return Begun(attempt, start, adopted)


def cycles(run: RunDirectory, generation: int) -> int:
    """How many attempts of a generation have begun. torchrun does not count the starts of its ranks."""
    return sum(entry.attempt.startswith(f"g{generation}-c") and not entry.adopted for entry in read(run))


def knows_nothing(begun: list[Begun]) -> bool:
    """Whether no attempt has ever gone on from a step: then nothing committed can be of a time line that was left."""
    return all(entry.start is None for entry in begun)


def adopted(saved: Iterable[tuple[int, str]]) -> list[Begun]:
    """A history in which all of `saved`, (step, attempt), has its place: steps of a run without a list of attempts."""
    steps: dict[str, list[int]] = {}
    for step, attempt in sorted(saved):
        steps.setdefault(attempt, []).append(step)
    history, reached = [], 0
    for attempt, own in steps.items():
        history.append(Begun(attempt, reached, adopted=True))
        reached = max(reached, *own)
    return history


def begin(run: RunDirectory, attempt: str, generation: int, history: Iterable[Begun] = ()) -> None:
    """Make `attempt` the current one, before it looks at any checkpoint. Rank 0 only.

    history: what `adopted` made of the committed steps, for a list that `knows_nothing`; it is put first. Raises
    StaleGeneration or StaleAttempt if a newer one has begun, OSError.
    """
    run.require_generation(generation)
    before = read(run)
    _require_newest(before, attempt)
    others = [entry for entry in before if entry.adopted or entry.attempt != attempt]
    _write(run, [*history, *others, Begun(attempt, None)])


def _require_newest(begun: list[Begun], attempt: str) -> None:
    """Rank 0 of an older attempt may have been stuck for long, in the file system, say. Adopted ones have no order."""
    mine = _order(attempt)
    for entry in reversed(begun):
        other = None if entry.adopted else _order(entry.attempt)
        if mine is not None and other is not None and other > mine:
            raise StaleAttempt(f"attempt {attempt} was aborted: {entry.attempt} has begun after it, and this one ends")


def _order(attempt: str) -> tuple[int, ...] | None:
    """(generation, cycle, restart) of g1-c0-r0; None for another name."""
    numbers = re.fullmatch(r"g(\d+)-c(\d+)-r(\d+)", attempt)
    return None if numbers is None else tuple(map(int, numbers.groups()))


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
    # An adopted attempt and one of this run directory may have the same name; then there are two places.
    return any(all(entry.start is None or entry.start >= step for entry in begun[place + 1 :]) for place in places)


def _write(run: RunDirectory, begun: list[Begun]) -> None:
    write_atomically(run.attempts / names.LINEAGE, json.dumps({"attempts": [asdict(entry) for entry in begun]}))
