"""One clock for all processes of a run.

Processes of one boot share a monotonic clock: their times compare exactly, whatever the wall clock does. Between
machines the wall anchors must do, unless two machines finished the same steps: a step ends on all ranks within
milliseconds, so steps correct a wall clock that is off by more than a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.goodput.columns import Floats, Integers
from holdfast.goodput.event import Process
from holdfast.goodput.timeline import Anomaly

TOLERANCE_S = 1.0
"""Disagreement of two clocks up to which the wall anchors are believed. Ranks end a step within milliseconds."""


@dataclass(frozen=True)
class StepEnds:
    """The finished steps of one boot: distinct keys in order, and when the first of its ranks had done each.

    A key stands for (generation, cycle, step); ends are on the boot's own monotonic clock.
    """

    boot: str
    keys: Integers
    ends: Floats

    @classmethod
    def of(cls, boot: str, keys: Integers, ends: Floats) -> StepEnds:
        """From one entry per rank and step."""
        distinct, index = np.unique(keys, return_inverse=True)
        earliest = np.full(len(distinct), np.inf)
        np.minimum.at(earliest, index, ends)
        return cls(boot, distinct, earliest)


def clock_shifts(processes: Sequence[Process], step_ends: Iterable[StepEnds]) -> tuple[dict[str, float], list[Anomaly]]:
    """Seconds to add to each boot's monotonic time to be on the reference boot's clock, whose own shift is exactly 0.

    The reference is the boot of the local runner, else the one with most processes.
    """
    boots: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        boots[process.boot].append(process)
    reference = max(boots, key=lambda b: (any(p.source == "runner" for p in boots[b]), len(boots[b])))
    offsets, anomalies = {}, []
    for boot, members in boots.items():
        offsets[boot] = _usual_offset(members)
        anomalies += _clock_steps(members, offsets[boot])
    shifts = {boot: 0.0 if boot == reference else offsets[boot] - offsets[reference] for boot in boots}
    anomalies += _align(shifts, reference, boots, list(step_ends))
    return shifts, anomalies


def _usual_offset(members: list[Process]) -> float:
    """Wall minus monotonic time, as most processes of a boot have it; the earliest of those, where it was set."""
    offsets = np.array([p.wall - p.mono for p in sorted(members, key=lambda p: p.mono)])
    ordered = np.sort(offsets)
    near = np.searchsorted(ordered, offsets + TOLERANCE_S, "right") - np.searchsorted(ordered, offsets - TOLERANCE_S)
    return float(offsets[np.argmax(near)])


def _clock_steps(members: list[Process], offset: float) -> list[Anomaly]:
    found = []
    for process in members:
        jump = (process.wall - process.mono) - offset
        if abs(jump) > TOLERANCE_S:
            text = (
                f"the wall clock is {jump:+.1f} s from that of other processes of the same boot: it was set in "
                "between. Durations are monotonic, so none is affected"
            )
            found.append(Anomaly("clock_step", process.file, text))
    return found


def _align(
    shifts: dict[str, float], reference: str, boots: dict[str, list[Process]], step_ends: list[StepEnds]
) -> list[Anomaly]:
    """Correct in place the shifts of boots that share steps with boots that are right."""
    anomalies = []
    settled = StepEnds("", np.empty(0, np.int64), np.empty(0))
    waiting = sorted(step_ends, key=lambda own: (own.boot != reference, -len(own.keys), own.boot))
    while waiting:
        # A boot that shares steps with those settled so far goes next; one that shares none is believed by its anchor.
        own = next((w for w in waiting if np.isin(w.keys, settled.keys).any()), waiting[0])
        waiting.remove(own)
        _, there, here = np.intersect1d(settled.keys, own.keys, assume_unique=True, return_indices=True)
        gaps = settled.ends[there] - (own.ends[here] + shifts[own.boot])
        gap = float(np.median(gaps)) if len(gaps) else 0.0
        if abs(gap) > TOLERANCE_S:
            shifts[own.boot] += gap
            machine = next((p.node for p in boots[own.boot] if p.node), own.boot)
            text = (
                f"its wall clock is {-gap:+.1f} s from that of the machine compared with; put right here by "
                f"{len(gaps)} steps that ended on both at the same time"
            )
            anomalies.append(Anomaly("clock_skew", machine, text))
        new = ~np.isin(own.keys, settled.keys)
        settled = StepEnds.of(
            "",
            np.concatenate([settled.keys, own.keys[new]]),
            np.concatenate([settled.ends, own.ends[new] + shifts[own.boot]]),
        )
    return anomalies
