"""What became of the checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from holdfast.goodput.attempts import Attempt, reigning
from holdfast.goodput.columns import Codes, Events, Floats, Integers
from holdfast.goodput.dividing import Key
from holdfast.goodput.hidden import FEWEST, find_hidden
from holdfast.goodput.timeline import Timeline

STAGES = (
    ("the step waited", "blocked_s"),
    ("slower steps during the write", "hidden_s"),
    ("slower steps during a write to the local tier", "local_hidden_s"),
    ("written by the slowest rank", "write_s"),
    ("written to the local tier, as seen between two steps", "local_write_s"),
    ("from the last acknowledgement to the commit", "publish_s"),
    ("from copy to commit", "persist_s"),
)
"""What a report says of a save, and where it stands in Saves."""
TOO_FEW = f"no attempt had {FEWEST} steps without a write"
"""Why what a write hides may be unknown."""


@dataclass(frozen=True)
class Saves:
    """Checkpoints of a run. Seconds per save are those of its slowest rank; empty tuples where nothing was logged."""

    committed: tuple[int, ...]
    """Steps."""
    failed: tuple[tuple[int | None, str], ...]
    """(step, error), once per save."""
    skipped: tuple[tuple[str, str], ...]
    """(folder, why): not fit to restore from, once per folder."""
    blocked_s: tuple[float, ...]
    """Time per save in which the step waited: copy to host memory, and the wait for the save before."""
    hidden_s: tuple[float, ...]
    """What the steps during a background write to the shared storage took longer than the others, in all. Only of
    attempts with enough steps beside which nothing was written: of others it is not known."""
    local_hidden_s: tuple[float, ...]
    """The same of writes to the local tier."""
    write_s: tuple[float, ...]
    """Time per save that the slowest rank's writer process took to make its part durable. Logs that do not say it: from
    the copy until the training loop saw that the part is durable, which it does between two steps."""
    local_write_s: tuple[float, ...]
    """Time per save to the local tier until the training loop saw, between two steps, that the slowest rank's part is
    there."""
    publish_s: tuple[float, ...]
    """Time per save from the last rank's acknowledgement to the commit."""
    persist_s: tuple[float, ...]
    """Time per save from the copy to the commit, all in the background."""

    def unknown(self, name: str) -> bool:
        """Whether there were saves, but what they hid cannot be told. name: as in STAGES."""
        writes = {"hidden_s": self.write_s, "local_hidden_s": self.local_write_s}.get(name)
        return bool(writes) and not getattr(self, name)

    def summary(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "committed": list(self.committed),
            "failed": [{"step": step, "error": error} for step, error in self.failed],
            "skipped": [{"folder": folder, "why": why} for folder, why in self.skipped],
            "blocked_s": _spread(self.blocked_s),
            "hidden_s": _spread(self.hidden_s),
            "local_hidden_s": _spread(self.local_hidden_s),
            "write_s": _spread(self.write_s),
            "local_write_s": _spread(self.local_write_s),
            "publish_s": _spread(self.publish_s),
            "persist_s": _spread(self.persist_s),
        }


def _spread(seconds: tuple[float, ...]) -> dict[str, float | int | None]:
    return {
        "count": len(seconds),
        "median": median(seconds) if seconds else None,
        "max": max(seconds, default=None),
    }


def find_saves(timeline: Timeline, attempts: Sequence[Attempt]) -> Saves:
    """Collect commits, failures and durations. attempts: all of them; a save belongs to one, and so does a step that it
    slows down."""
    skipped = {event.text("folder"): event.text("why") for event in timeline.named("skipped")}
    committed = {step for event in timeline.named("commit") if (step := event.whole("step")) is not None}
    hidden = [write for attempt in reigning(attempts) for write in find_hidden(attempt)]
    events = [attempt.columns for attempt in attempts]
    return Saves(
        committed=tuple(sorted(committed)),
        failed=tuple(_failed(attempts)),
        skipped=tuple(sorted(skipped.items())),
        blocked_s=per_save(events, "stage", "checkpoint_wait"),
        hidden_s=tuple(write.seconds for write in hidden if not write.local),
        local_hidden_s=tuple(write.seconds for write in hidden if write.local),
        write_s=per_save(events, "write", field="seconds"),
        local_write_s=per_save(events, "write", local=True),
        publish_s=per_save(events, "publish"),
        persist_s=per_save(events, "persist"),
    )


def _failed(attempts: Sequence[Attempt]) -> list[tuple[int | None, str]]:
    failed: dict[tuple[Key, int | None], str] = {}
    for attempt in attempts:
        for event in attempt.points("save_failed"):
            failed.setdefault((attempt.key, event.whole("step")), event.text("error"))
    return [(step, error) for (_, step), error in failed.items()]


def per_save(attempts: Iterable[Events], *names: str, local: bool = False, field: str = "") -> tuple[float, ...]:
    """Seconds of each save of a tier: sum over a rank's spans, then the slowest rank. A save is a step of an attempt.

    field: where a row says how long it was, if not by its span.
    """
    seconds: list[float] = []
    for events in attempts:
        parts = [_parts(events, name, local, field) for name in names]
        steps, processes, each = (np.concatenate(column) for column in zip(*parts, strict=True))
        saves, save = np.unique(steps, return_inverse=True)
        ranks = max(1, len(events.processes))
        by_rank, index = np.unique(save * ranks + processes, return_inverse=True)
        slowest = np.zeros(len(saves))
        np.maximum.at(slowest, by_rank // ranks, np.bincount(index, each, len(by_rank)))
        seconds += slowest.tolist()
    return tuple(seconds)


def _parts(events: Events, name: str, local: bool, field: str) -> tuple[Integers, Codes, Floats]:
    """(step, process, seconds) of each row."""
    spans = events.spans(name)
    spans = spans.take(events.local(spans) == local)
    told = spans.numbers(field)
    return spans.integers("step"), spans.process, np.where(np.isnan(told), spans.end - spans.start, told)
