"""One seed from its draw to its verdict."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from bench.chaos.stack.job import Ran, run_job
from bench.chaos.stack.judge import Findings, judge
from bench.chaos.stack.records import Line
from bench.chaos.stack.schedule import Schedule
from bench.chaos.stack.source import damages_commits
from bench.chaos.stack.weights import Weights
from bench.chaos.watch import Watch
from holdfast.config import names

START_LIMIT_S = 180.0
"""Start and end of a job. Ten times what they take on two quiet cores: only a hang may meet the limit."""
FAULT_LIMIT_S = 90.0
"""More for each fault: the longest way back goes through recovery.rejoin_timeout_s and a start of all pods."""
LOOK_S = 0.1
"""Between two looks at the checkpoint folder. Each reads all of the newest commit."""


def limit_s(schedule: Schedule) -> float:
    """A job that takes longer hangs."""
    return START_LIMIT_S + FAULT_LIMIT_S * len(schedule.faults)


def attempt(schedule: Schedule, out: Path, weights: Weights, stopping: threading.Event) -> tuple[Line, list[str]]:
    """Run the job in `out` and judge it: its line, and who was there and what they waited for if it hung.

    Raises Interrupted or BrokenPeace. The folder is removed if every promise was kept.
    """
    _clear(out)
    watch = Watch(out / "run" / names.CHECKPOINTS, pause_s=LOOK_S, damaged=damages_commits(schedule.faults))
    with watch.looking():
        ran = run_job(schedule.config(), out, limit_s(schedule), stopping)
    found = judge(schedule, ran, watch.complaints)
    identical = None
    if schedule.expected.end == "bit_equal" and found.end == "complete":
        different = weights.differences(schedule, ran.run_dir)
        identical = not different
        found.wrong += different
    if not found.wrong:
        _clear(out)
    return _line(schedule, ran, found, identical), ran.hung


def _line(schedule: Schedule, ran: Ran, found: Findings, identical: bool | None) -> Line:
    faults = schedule.config().faults
    return Line(
        seed=schedule.seed,
        topology=schedule.topology(),
        drawn=[fault.id for fault in faults],
        kinds=[fault.kind for fault in faults if fault.id in found.struck],
        expected=schedule.expected.end,
        end=found.end,
        identical=identical,
        seconds=ran.seconds,
        restarts=found.restarts,
        unattributed=round(found.unattributed, 4),
        why=found.wrong,
    )


def _clear(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for suffix in (".yaml", ".txt"):
        out.with_name(f"{out.name}{suffix}").unlink(missing_ok=True)
