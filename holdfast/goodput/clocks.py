"""One clock for all processes of a run.

Processes of one boot share a monotonic clock: their times compare exactly, whatever the wall clock does. Between
machines the wall anchors must do, unless two machines finished the same steps: a step ends on all ranks within
milliseconds, so steps correct a wall clock that is off by more than a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast.goodput.timeline import Anomaly, Process

TOLERANCE_S = 1.0
"""Disagreement of two clocks up to which the wall anchors are believed. Ranks end a step within milliseconds."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A finished step of one rank; key is (generation, cycle, step), end on the monotonic clock of its boot."""

    boot: str
    key: tuple[int, int, int]
    end: float


def clock_shifts(processes: Sequence[Process], step_ends: Iterable[StepEnd]) -> tuple[dict[str, float], list[Anomaly]]:
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
    anomalies += _align(shifts, reference, boots, _ends_by_boot(step_ends))
    return shifts, anomalies


def _usual_offset(members: list[Process]) -> float:
    """Wall minus monotonic time, as most processes of a boot have it; the earliest of those, where it was set."""
    offsets = [p.wall - p.mono for p in sorted(members, key=lambda p: p.mono)]
    return max(offsets, key=lambda offset: sum(abs(other - offset) <= TOLERANCE_S for other in offsets))


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


def _ends_by_boot(step_ends: Iterable[StepEnd]) -> dict[str, dict[tuple[int, int, int], float]]:
    ends: dict[str, dict[tuple[int, int, int], float]] = defaultdict(dict)
    for step_end in step_ends:
        known = ends[step_end.boot].setdefault(step_end.key, step_end.end)
        ends[step_end.boot][step_end.key] = min(known, step_end.end)
    return ends


def _align(
    shifts: dict[str, float],
    reference: str,
    boots: dict[str, list[Process]],
    ends: dict[str, dict[tuple[int, int, int], float]],
) -> list[Anomaly]:
    """Correct in place the shifts of boots that share steps with boots that are right."""
    anomalies = []
    settled: dict[tuple[int, int, int], float] = {}
    ordered = sorted(ends, key=lambda b: (b != reference, -len(ends[b]), b))
    waiting = list(ordered)
    while waiting:
        # A boot that shares steps with those settled so far goes next; one that shares none is believed by its anchor.
        boot = next((b for b in waiting if settled.keys() & ends[b].keys()), waiting[0])
        waiting.remove(boot)
        gaps = [settled[key] - (end + shifts[boot]) for key, end in ends[boot].items() if key in settled]
        gap = median(gaps) if gaps else 0.0
        if abs(gap) > TOLERANCE_S:
            shifts[boot] += gap
            machine = next((p.node for p in boots[boot] if p.node), boot)
            text = (
                f"its wall clock is {-gap:+.1f} s from that of the machine compared with; put right here by "
                f"{len(gaps)} steps that ended on both at the same time"
            )
            anomalies.append(Anomaly("clock_skew", machine, text))
        for key, end in ends[boot].items():
            settled.setdefault(key, end + shifts[boot])
    return anomalies
