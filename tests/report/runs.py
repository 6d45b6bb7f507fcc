"""Runs that the report's tests look at: one that was broken and recovered, one that is hostile, one that is long."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.config import dump, load_profile, names
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run
from holdfast.report.run import ReportedRun, reported_run
from tests.goodput.builder import Log, Run, begin, end

VERSIONS = "holdfast 0.1.0, python 3.12.3, torch 2.11.0+cu130, CUDA 13.0"
HOSTILE = """</script><script>window.broken = 1</script><img src=x onerror="window.broken = 1">&amp;'\ud800"""
"""Ends scripts, starts scripts, breaks out of attributes, and holds half of a character."""


def steps(logs: list[Log], at: float, first: int, last: int, loss: float = 4.0) -> float:
    """All ranks do steps first..last in a second each; rank 1's loss is 0.2 above rank 0's."""
    for step in range(first, last + 1):
        for rank, log in enumerate(logs):
            log.span(at, at + 1, "step", step=step, loss=loss - 0.1 * step + 0.2 * rank)
        at += 1
    return at


def broken_run(run: Run, kind: str = "rank_sigkill", error: str = "[Errno 28] No space left on device <fsx>") -> None:
    """An in-job restart from step 4 after step 6, with commits, a failed save, versions and a config."""
    supervisor = run.process(0, "supervisor", pod="worker-0", role="worker")
    supervisor.point(0, "pod_start")
    logs = run.ranks(1)
    begin(logs, 2)
    for log in logs:
        log.span(1, 2, "import", versions=VERSIONS)
    steps(logs, 3, 1, 6)
    for log in logs:
        log.span(7, 7.004, "stage", step=4, bytes=1000)
        log.span(7.004, 7.7, "write", step=4, bytes=1000)
        log.span(7.004, 8, "persist", step=4, bytes=2000)
    logs[0].point(8, "commit", step=4)
    logs[0].point(8.5, "save_failed", step=6, error=error)
    logs[1].point(9, "fault", id=f"{kind}-rank1-step7", kind=kind, rank=1, step=7)
    supervisor.point(9.5, "launcher_event", event="failure_detected", cycle=1)
    new = run.ranks(12, cycle=1)
    for log in new:
        log.span(13, 15, "import", versions=VERSIONS)
        log.span(15, 16, "restore", step=4)
    steps(new, 16, 5, 12)
    new[0].point(22, "commit", step=10)
    end(new, 24, "complete")
    (run.path / names.RUN_YAML).write_text(dump(load_profile("cpu-demo")))


def long_run(path: Path, count: int, every: int = 500) -> None:
    """One rank that does `count` steps of 10 ms, with a commit every so many steps, written as its log would be."""
    events = path / names.EVENTS
    events.mkdir(parents=True)
    anchor = {"schema": 1, "name": "anchor", "source": "rank", "wall": 1.7e9, "mono": 0.0, "boot": "b", "rank": 0}
    anchor |= {"world_size": 1, "generation": 1, "cycle": 0, "pod": "worker-0", "node": "node-0"}
    with (events / "rank-rank0-podworker-0.host.1.1.jsonl").open("w") as file:
        file.write(json.dumps(anchor) + "\n" + '{"t":0.0,"name":"process_start"}\n')
        for step in range(1, count + 1):
            loss = 3 + 8 / (1 + step / 2000) + (step * 7919 % 101) / 400
            file.write(f'{{"t":{step / 100:.3f},"name":"step","dur":0.0098,"step":{step},"loss":{loss:.5f}}}\n')
            if step % every == 0:
                file.write(f'{{"t":{step / 100 + 0.005:.3f},"name":"commit","step":{step}}}\n')


def reported(run_dir: Path, name: str) -> ReportedRun:
    """A run directory as the report takes it."""
    timeline = read_run(run_dir)
    return reported_run(name, run_dir, timeline, account(timeline))
