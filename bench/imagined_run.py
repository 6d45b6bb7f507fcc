"""A large run that was never made: the event logs that it would have left, half as archives, half as JSON lines.

Eight ranks per node, each node with its own boot and its own clocks; a save every 500 steps; four faults, each of which
costs the steps since the last save and a restart of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.config.names import EVENTS
from holdfast.goodput import archive
from holdfast.goodput.columns import ABSENT, Floats
from holdfast.goodput.events import SCHEMA, segment_name
from holdfast.goodput.lines import Rows, Segment

RANKS_PER_NODE = 8
STEP_S, DATA_S, SAVE_EVERY = 0.5, 0.004, 500
STAGE_S, WRITE_S, RESTORE_S, RESTART_S, DETECTION_S = 0.3, 40.0, 20.0, 60.0, 5.0
FAULTS = 4
STEPS_PER_SEGMENT = 830
"""About what EventLog puts into one."""


@dataclass(frozen=True)
class Stint:
    """One attempt: steps first..last, the first of them at job second `start`."""

    cycle: int
    first: int
    last: int
    start: float


@dataclass(frozen=True)
class Imagined:
    """The run: how many ranks finished how many steps."""

    ranks: int
    steps: int
    seed: int = 7

    def stints(self) -> Iterator[Stint]:
        """The attempts. A fault strikes in the middle between two saves."""
        first, start = 1, RESTART_S
        for cycle in range(FAULTS + 1):
            due = self.steps * (cycle + 1) // (FAULTS + 1)
            last = due if cycle == FAULTS else max(first, due - due % SAVE_EVERY + SAVE_EVERY // 2)
            yield Stint(cycle, first, last, start)
            start += (last - first + 1) * STEP_S + DETECTION_S + RESTART_S + RESTORE_S
            first = max(1, last - last % SAVE_EVERY + 1)


@dataclass
class _Rank:
    """One process and its clock."""

    run: Imagined
    rank: int
    stint: Stint
    draw: np.random.Generator
    segments: list[Segment] = field(default_factory=list)

    def anchor(self) -> dict[str, Any]:
        node = self.rank // RANKS_PER_NODE
        return {
            "schema": SCHEMA,
            "name": "anchor",
            "source": "rank",
            "wall": 1.7e9 + self.stint.start,
            "mono": self._mono(self.stint.start),
            "boot": f"boot-{node}",
            "host": f"node-{node}",
            "pid": 1000 + self.rank,
            "rank": self.rank,
            "world_size": self.run.ranks,
            "generation": 1,
            "cycle": self.stint.cycle,
            "pod": f"worker-{node}",
            "node": f"node-{node}",
        }

    def _mono(self, time: float) -> float:
        return time + 1000.0 * (self.rank // RANKS_PER_NODE)

    def write(self) -> Iterator[Segment]:
        """Its segments in order."""
        first_file = f"rank-rank{self.rank}.node-{self.rank // RANKS_PER_NODE}.{self.stint.cycle}.jsonl"
        numbers = np.arange(self.stint.first, self.stint.last + 1)
        for number, low in enumerate(range(0, len(numbers), STEPS_PER_SEGMENT)):
            segment = Segment(segment_name(first_file, number), self.anchor())
            self._fill(segment, numbers[low : low + STEPS_PER_SEGMENT], beginning=number == 0)
            yield segment

    def _fill(self, segment: Segment, steps: np.ndarray[Any, np.dtype[np.int64]], beginning: bool) -> None:
        at = self._mono(self.stint.start) + (steps - self.stint.first) * STEP_S
        wait = self.draw.uniform(0, 0.003, len(steps))
        data = DATA_S * self.draw.uniform(0.5, 1.5, len(steps))
        loss = 2.0 + self.draw.uniform(0, 1, len(steps))
        _add(segment, "data", at + wait, data, steps)
        _add(segment, "step", at + wait, np.full(len(steps), STEP_S) - wait, steps, loss)
        saves = steps[steps % SAVE_EVERY == 0]
        ends = at[steps % SAVE_EVERY == 0] + STEP_S
        _add(segment, "stage", ends, np.full(len(saves), STAGE_S), saves)
        _add(segment, "write", ends + STAGE_S, np.full(len(saves), WRITE_S), saves)
        if self.rank == 0:
            _add(segment, "commit", ends + STAGE_S + WRITE_S, np.zeros(len(saves)), saves)
        if self.stint.last == steps[-1] == self.run.steps:
            _add(segment, "drain", at[-1:] + STEP_S, np.array([STAGE_S + WRITE_S]), steps[-1:])
        if beginning:
            begin = np.array([self._mono(self.stint.start) - RESTORE_S - 1])
            _add(segment, "process_start", begin - RESTART_S / 2, np.zeros(1))
            _add(segment, "attempt_start", begin, np.zeros(1), restart=0)
            if self.stint.cycle:
                _add(segment, "restore", begin + 1, np.array([RESTORE_S]), np.array([self.stint.first - 1], np.int64))


def _add(
    segment: Segment,
    name: str,
    t: np.ndarray[Any, np.dtype[Any]],
    dur: np.ndarray[Any, np.dtype[Any]],
    step: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    loss: Floats | None = None,
    restart: int | None = None,
) -> None:
    if not len(t):
        return
    whole = {} if step is None else {"step": step.astype(np.int64)}
    if restart is not None:
        whole["restart"] = np.full(len(t), restart, np.int64)
    real = {} if loss is None else {"loss": loss}
    segment.counts[name] = len(t)
    segment.rows[name] = Rows(t.copy(), dur.copy(), whole, real, None)


def write_run(run_dir: Path, run: Imagined) -> None:
    """The run's logs: of each rank the last segment as JSON lines, all others in archives of many segments."""
    folder = run_dir / EVENTS
    folder.mkdir(parents=True)
    draw = np.random.default_rng(run.seed)
    stints = list(run.stints())
    for stint in stints:
        ranks = [list(_Rank(run, rank, stint, draw).write()) for rank in range(run.ranks)]
        lasts = [segments.pop() for segments in ranks] if stint is stints[-1] else []
        for batch in zip(*ranks, strict=True):
            archive.write(folder, batch)
        for segment in lasts:
            (folder / segment.file).write_text("\n".join(_lines(segment)) + "\n", encoding="utf-8")
    _supervisor(folder, stints)


def _lines(segment: Segment) -> Iterator[str]:
    yield json.dumps(segment.anchor, separators=(",", ":"))
    for name, rows in segment.rows.items():
        fields = {**rows.whole, **rows.real}
        for index in range(len(rows.t)):
            own = {key: values[index].item() for key, values in fields.items() if values[index] != ABSENT}
            record = {"t": float(rows.t[index]), "name": name, "dur": float(rows.dur[index]), **own}
            yield json.dumps(record, separators=(",", ":"))


def _supervisor(folder: Path, stints: list[Stint]) -> None:
    """Pod 0's supervisor: when it began, and when its launcher noticed each fault."""
    anchor = {"schema": SCHEMA, "name": "anchor", "source": "supervisor", "role": "worker", "pod": "worker-0"}
    anchor |= {"wall": 1.7e9, "mono": 0.0, "boot": "boot-0", "node": "node-0"}
    lines = [anchor, {"t": 0.0, "name": "pod_start"}]
    for stint in stints[:-1]:
        fault = stint.start + (stint.last - stint.first + 1) * STEP_S
        lines.append({"t": fault, "name": "fault", "id": f"hang-{stint.cycle}", "kind": "hang", "rank": 0})
        lines.append({"t": fault + DETECTION_S, "name": "launcher_event", "event": "failure_detected"})
    last = stints[-1]
    end = last.start + (last.last - last.first + 1) * STEP_S + STAGE_S + WRITE_S
    lines.append({"t": end, "name": "pod_end", "code": 0})
    (folder / "supervisor-podworker-0.node-0.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
