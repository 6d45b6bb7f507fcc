"""Loss and duration of every executed step, and how a hundred thousand of them become a line that draws at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.goodput.attempts import Attempt, reigning, surviving_steps
from holdfast.goodput.columns import Floats, Integers
from holdfast.goodput.ledger import Ledger

Flags = npt.NDArray[np.bool_]

MOST_POINTS = 2000
"""Points of one line: about two per pixel of a wide screen, so more would not change the picture."""


@dataclass(frozen=True)
class Steps:
    """Executed steps in order of execution. A step that was rolled back and executed again stands here twice."""

    step: Integers
    loss: Floats
    """Mean over the ranks that logged one; NaN where none did."""
    seconds: Floats
    """From the first rank's start to the last rank's end."""
    kept: Flags
    """Whether this execution is part of the final state."""
    attempt: Integers
    """Index into `attempts`."""
    attempts: tuple[str, ...]
    """Names of the attempts that executed steps."""

    def first_steps(self) -> list[tuple[str, int]]:
        """(attempt, its first step), of every attempt that executed one."""
        return [(name, int(self.step[self.attempt == index][0])) for index, name in enumerate(self.attempts)]


def find_steps(ledger: Ledger) -> Steps:
    """All finished steps of a run."""
    survivors = surviving_by_attempt(ledger)
    trained = [attempt for attempt in reigning(ledger.attempts) if len(attempt.extents.steps)]
    extents = [attempt.extents for attempt in trained]
    nothing = np.empty(0)
    return Steps(
        step=np.concatenate([nothing.astype(np.int64), *(found.steps for found in extents)]),
        loss=np.concatenate([nothing, *map(mean_losses, trained)]),
        seconds=np.concatenate([nothing, *(found.end - found.start for found in extents)]),
        kept=np.concatenate(
            [nothing.astype(np.bool_), *(np.isin(a.extents.steps, survivors.get(str(a), [])) for a in trained)]
        ),
        attempt=np.repeat(np.arange(len(trained)), [len(found.steps) for found in extents]),
        attempts=tuple(map(str, trained)),
    )


def surviving_by_attempt(ledger: Ledger) -> dict[str, list[int]]:
    """For each attempt, by its name, the steps whose execution in it is part of the final state."""
    of_key: dict[object, list[int]] = {}
    for step, key in surviving_steps(ledger.attempts).items():
        of_key.setdefault(key, []).append(step)
    return {str(attempt): of_key.get(attempt.key, []) for attempt in ledger.attempts}


def mean_losses(attempt: Attempt) -> Floats:
    """Loss of each of attempt.extents.steps: each rank logs that of its own part of the batch, and the parts are
    equally large. NaN where no rank logged a finite one."""
    spans = attempt.finished
    loss = spans.numbers("loss")
    index = np.searchsorted(attempt.extents.steps, spans.integers("step"))
    finite = np.isfinite(loss)
    count = np.bincount(index[finite], minlength=len(attempt.extents.steps))
    total = np.bincount(index[finite], loss[finite], len(attempt.extents.steps))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def envelope(x: npt.NDArray[Any], y: Floats, most: int = MOST_POINTS) -> tuple[npt.NDArray[Any], Floats]:
    """At most `most` points that draw like all of them: of each stretch of x, the lowest and the highest y.

    x: ascending, shape (n,). y: shape (n,); what is not finite is left out. A single spike survives, which a mean or
    every k-th point would hide.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(y) <= most:
        return x, y
    chosen: list[int] = []
    edges = np.linspace(0, len(y), most // 2 + 1).astype(int)
    for begin, end in pairwise(edges.tolist()):
        part = y[begin:end]
        chosen += sorted({begin + int(part.argmin()), begin + int(part.argmax())})
    return x[chosen], y[chosen]
