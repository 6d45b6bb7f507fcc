"""Whatever a run's logs look like, every second is in exactly one bucket."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.goodput import compaction, events
from holdfast.goodput.failures import PARTS
from holdfast.goodput.ledger import BUCKETS, account
from holdfast.goodput.overlay import union
from holdfast.goodput.reader import read_run
from tests.goodput.builder import Log, Machine, Run

KINDS = ("exception", "rank_sigkill", "hang", "node_loss", "control_loss")


class Imagined:
    """A run drawn from a seed: ranks, restarts of all layers, roll-backs, skewed clocks, missing and damaged logs."""

    def __init__(self, path: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.run = Run(path)
        self.world = self.draw.randint(1, 4)
        self.machines = [
            Machine(
                boot=f"boot-{i}", mono=self.draw.uniform(0, 1e6), wall=1.7e9 + self.draw.choice([0, 0, 0.3, -300, 40])
            )
            for i in range(self.draw.randint(1, 3))
        ]
        self.now = self.draw.uniform(0, 50)
        self.step = 0
        self.committed = 0

    def wait(self, most: float = 3.0) -> float:
        """Some time passes; sometimes the next thing overlaps the last one."""
        self.now += self.draw.uniform(-0.5 if self.draw.random() < 0.1 else 0.0, most)
        return self.now

    def write(self) -> None:
        runner = self.run.process(self.now, "runner") if self.draw.random() < 0.5 else None
        if runner and self.draw.random() < 0.9:
            runner.point(self.now, "run_start")
        supervisor = self.run.process(self.wait(), "supervisor", pod="worker-0", role="worker")
        supervisor.point(self.now, "pod_start")
        generation, cycle, restart = 1, 0, 0
        logs = self.processes(generation, cycle)
        for _ in range(self.draw.randint(0, 5)):
            self.attempt(logs, restart, supervisor, runner)
            layer = self.draw.choice(["in_process", "in_job", "node"])
            if layer == "in_process":
                restart += 1
                continue
            restart = 0
            generation, cycle = (generation, cycle + 1) if layer == "in_job" else (generation + 1, 0)
            if layer == "node" and self.draw.random() < 0.4:
                self.world = self.draw.randint(1, 4)
            if layer == "node" and runner and self.draw.random() < 0.3:
                runner.point(self.now, "run_end", code=1)
                self.now += 100
                runner.point(self.now, "run_start")
                supervisor.point(self.wait(), "pod_start")
            logs = self.processes(generation, cycle)
        if runner and self.draw.random() < 0.7:
            runner.point(self.wait(), "run_end", code=0)
        self.run.close()
        self.damage()

    def processes(self, generation: int, cycle: int) -> list[Log]:
        at = self.wait()
        ranks = [rank for rank in range(self.world) if self.draw.random() < 0.9]
        return [
            self.run.rank(
                rank,
                at + self.draw.uniform(0, 0.5),
                generation=generation,
                cycle=cycle,
                world=self.world,
                pod=f"worker-{self.draw.choice([rank, rank, rank + 1])}",
                machine=self.machines[rank % len(self.machines)],
            )
            for rank in ranks
        ]

    def attempt(self, logs: list[Log], restart: int, supervisor: Log, runner: Log | None) -> None:
        start = self.wait()
        for log in logs:
            log.point(start, "attempt_start", restart=restart)
            log.span(start, start + 0.5, "build")
        if self.committed and self.draw.random() < 0.8:
            self.step = self.committed
            begin, restored = self.now, self.wait()
            for log in logs:
                log.span(min(begin, restored), restored, "restore", step=self.committed)
        for _ in range(self.draw.randint(0, 8)):
            self.one_step(logs)
        if self.draw.random() < 0.7:
            who = runner if runner and self.draw.random() < 0.4 else self.draw.choice(logs) if logs else supervisor
            kind = self.draw.choice(KINDS)
            who.point(
                self.wait(), "fault", id=f"{kind}-{self.draw.randint(0, 3)}", kind=kind, rank=0, step=self.step + 1
            )
        for log in logs:
            if self.draw.random() < 0.5:
                outcome = self.draw.choice(["exception", "complete", "preempted"])
                log.point(self.wait(0.2), "attempt_end", restart=restart, outcome=outcome, step=self.step)
        if self.draw.random() < 0.5:
            supervisor.point(self.wait(), "launcher_event", event="failure_detected", cycle=1)

    def one_step(self, logs: list[Log]) -> None:
        self.step += 1
        start, end = sorted((self.now, self.wait(1.0)))
        for log in logs:
            inside = start + (end - start) * self.draw.random()
            name = self.draw.choice(["data", "stage", "checkpoint_wait", "drain", "persist", "compile", "novel"])
            log.span(start, inside, name, step=self.step)
            error = {"error": "RuntimeError"} if self.draw.random() < 0.05 else {}
            log.span(start, end, "step", step=self.step, **error)
        if self.draw.random() < 0.3:
            self.committed = self.step

    def damage(self) -> None:
        for path in [path for log in self.run.logs for path in sorted(log.path.parent.glob(f"{log.path.stem}*"))]:
            content = path.read_bytes()
            choice = self.draw.random()
            if choice < 0.15:
                path.write_bytes(content[: self.draw.randint(0, len(content))])
            elif choice < 0.2:
                middle = self.draw.randint(0, len(content))
                path.write_bytes(content[:middle] + b"\0garbage\n" + content[middle:])


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_buckets_sum_to_the_wall_time_and_none_is_negative_whatever_the_logs_hold(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Imagined(Path(folder), seed).write()
        ledger = account(read_run(Path(folder)))
    assert list(ledger.buckets) == list(BUCKETS)
    assert min(ledger.buckets.values()) >= 0
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert 0 <= ledger.goodput <= 1
    covered = [(segment.start, segment.end) for segment in ledger.segments]
    assert all(end == start for (_, end), (start, _) in pairwise(covered))
    for recovery in ledger.recoveries:
        assert recovery.lost_steps >= 0
        assert all(seconds is None or seconds >= 0 for seconds in recovery.breakdown.values())
        assert list(recovery.breakdown) == list(PARTS)
        if recovery.recovered_s is not None and recovery.layer is not None:
            total = sum(seconds for seconds in recovery.breakdown.values() if seconds is not None)
            assert total == pytest.approx(recovery.recovered_s, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_productive_time_never_exceeds_what_one_execution_of_each_step_took(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Imagined(Path(folder), seed).write()
        ledger = account(read_run(Path(folder)))
    once: dict[int, float] = {}
    for attempt in ledger.attempts:
        for step, (start, end) in attempt.steps.items():
            once[step] = max(once.get(step, 0.0), end - start)
    assert ledger.buckets["productive"] <= sum(once.values()) + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=250, max_value=2500))
def test_archives_and_lines_mixed_say_exactly_what_lines_alone_say(seed: int, segment_bytes: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(events, "SEGMENT_BYTES", segment_bytes),
        patch.object(compaction, "LEAST_BYTES", 1),
    ):
        Imagined(Path(folder), seed).write()
        alone = read_run(Path(folder))
        compact = compaction.Compaction(Path(folder) / "events")
        for _ in range(seed % 3):
            compact.round()
        mixed = read_run(Path(folder))
    assert list(mixed.events) == list(alone.events)
    assert (mixed.processes, mixed.origin) == (alone.processes, alone.origin)
    assert sorted(map(str, mixed.anomalies)) == sorted(map(str, alone.anomalies))
    assert account(mixed).summary() == account(alone).summary()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=12))
def test_a_union_covers_the_same_time_and_its_parts_neither_overlap_nor_touch(spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], float)
    ends = np.array([start + length for start, length in spans], float)
    found = list(zip(*(part.tolist() for part in union(starts, ends)), strict=True))
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert {second for start, end in found for second in range(int(start), int(end))} == covered
    assert all(end < start for (_, end), (start, _) in pairwise(found))
