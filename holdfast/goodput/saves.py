"""What became of the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from holdfast.goodput.attempts import Attempt
from holdfast.goodput.columns import Codes, Events, Floats, Integers, Spans
from holdfast.goodput.hidden import find_hidden
from holdfast.goodput.timeline import Timeline

LOCAL = "local"
"""Field `tier` of events of the local tier; those of the shared storage have none."""


STAGES = (
    ("the step waited", "blocked_s"),
    ("slower steps during the write", "hidden_s"),
    ("written by the slowest rank", "write_s"),
    ("from the last acknowledgement to the commit", "publish_s"),
    ("from copy to commit", "persist_s"),
)
"""What a report says of a save, and where it stands in Saves."""


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
    """What the steps during a background write took longer than the others, in all."""
    write_s: tuple[float, ...]
    """Time per save until the part of the slowest rank is durable."""
    publish_s: tuple[float, ...]
    """Time per save from the last rank's acknowledgement to the commit."""
    persist_s: tuple[float, ...]
    """Time per save from the copy to the commit, all in the background."""

    def summary(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "committed": list(self.committed),
            "failed": [{"step": step, "error": error} for step, error in self.failed],
            "skipped": [{"folder": folder, "why": why} for folder, why in self.skipped],
            "blocked_s": _spread(self.blocked_s),
            "hidden_s": _spread(self.hidden_s),
            "write_s": _spread(self.write_s),
            "publish_s": _spread(self.publish_s),
            "persist_s": _spread(self.persist_s),
        }


def _spread(seconds: tuple[float, ...]) -> dict[str, float | int | None]:
    return {
        "count": len(seconds),
        "median": median(seconds) if seconds else None,
        "max": max(seconds, default=None),
    }


def find_saves(timeline: Timeline, attempts: Sequence[Attempt] = ()) -> Saves:
    """Collect commits, failures and durations; attempts are needed for what the background writes cost."""
    failed: dict[tuple[int | None, int, int], str] = {}
    for event in timeline.named("save_failed"):
        failed.setdefault((event.whole("step"), event.process.generation, event.process.cycle), event.text("error"))
    skipped = {event.text("folder"): event.text("why") for event in timeline.named("skipped")}
    committed = {step for event in timeline.named("commit") if (step := event.whole("step")) is not None}
    return Saves(
        committed=tuple(sorted(committed)),
        failed=tuple((step, error) for (step, _, _), error in failed.items()),
        skipped=tuple(sorted(skipped.items())),
        blocked_s=_per_save(timeline, "stage", "checkpoint_wait"),
        hidden_s=tuple(write.seconds for attempt in attempts for write in find_hidden(attempt)),
        write_s=_per_save(timeline, "write"),
        publish_s=_per_save(timeline, "publish"),
        persist_s=_per_save(timeline, "persist"),
    )


def _per_save(timeline: Timeline, *names: str) -> tuple[float, ...]:
    """Seconds of each save: sum over a rank's spans, then the slowest rank. A save is (generation, cycle, step)."""
    events = timeline.columns
    cycles = sorted({(process.generation, process.cycle) for process in events.processes})
    cycle_of = {cycle: number for number, cycle in enumerate(cycles)}
    cycle = np.array([cycle_of[process.generation, process.cycle] for process in events.processes], np.int64)
    parts = [_parts(events, events.spans(name), cycle) for name in names]
    saved_in, step, process, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
    steps, step_index = np.unique(step, return_inverse=True)
    keys = (saved_in * len(steps) + step_index) * len(events.processes) + process
    by_rank, index = np.unique(keys, return_inverse=True)
    total = np.bincount(index, seconds, len(by_rank))
    saves, index = np.unique(by_rank // max(1, len(events.processes)), return_inverse=True)
    slowest = np.zeros(len(saves))
    np.maximum.at(slowest, index, total)
    return tuple(slowest.tolist())


def _parts(events: Events, spans: Spans, cycle: Integers) -> tuple[Integers, Integers, Codes, Floats]:
    """(cycle, step, process, seconds) of each row, of what ranks did for the shared storage's saves."""
    ours = np.array([process.source == "rank" for process in events.processes], bool)[spans.process]
    if spans.rest is not None:
        local = np.array([*(str(rest.get("tier")) == LOCAL for rest in events.rests), False])
        ours &= ~local[spans.rest]
    rows = np.flatnonzero(ours)
    process = spans.process[rows]
    return cycle[process], spans.integers("step")[rows], process, spans.end[rows] - spans.start[rows]
