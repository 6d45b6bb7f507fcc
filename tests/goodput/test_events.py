"""The event log survives what happens to processes and disks."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.goodput.events import EventLog
from holdfast.goodput.reader import read_run


def start(folder: Path, rank: int, steps: int, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """A process that logs so many steps, and prints a line after the 50th."""
    argv = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder / "events"), str(rank), str(steps)]
    return subprocess.Popen(argv, text=True, stdout=output, cwd=Path(__file__).parents[2])


WRITER = """
    import sys
    from pathlib import Path
    from holdfast.goodput.events import EventLog
    log = EventLog(Path(sys.argv[1]), "rank", rank=int(sys.argv[2]), world_size=4)
    for step in range(1, int(sys.argv[3]) + 1):
        with log.span("step", step=step):
            pass
        if step == 50:
            print("running", flush=True)
"""


def test_sigkill_at_any_moment_leaves_a_log_that_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    with start(tmp_path, rank=0, steps=100_000_000, output=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "running\n"
        writer.send_signal(signal.SIGKILL)
        assert writer.wait(20) == -signal.SIGKILL
    timeline = read_run(tmp_path)
    steps = [event.finished_step for event in timeline.named("step")]
    assert len(steps) >= 50
    assert steps == list(range(1, len(steps) + 1))
    assert {anomaly.kind for anomaly in timeline.anomalies} <= {"torn_line"}


def test_processes_that_write_at_once_lose_no_line(tmp_path: Path) -> None:
    writers = [start(tmp_path, rank, steps=2000) for rank in range(4)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    timeline = read_run(tmp_path)
    assert timeline.anomalies == ()
    for rank in range(4):
        steps = [e.whole("step") for e in timeline.named("step") if e.process.rank == rank]
        assert sorted(step for step in steps if step is not None) == list(range(1, 2001))


def test_a_full_disk_stops_neither_the_process_nor_later_events(tmp_path: Path) -> None:
    # A file-size limit stands in for the full disk: it also cuts a line in two before it refuses.
    log = EventLog(tmp_path / "events", "rank", rank=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log.point("first")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 10, before[1]))
        for _ in range(20):
            log.point("lost", text="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    log.point("after")
    log.close()
    assert [event.name for event in read_run(tmp_path).events] == ["first", "after"]
    assert [anomaly.kind for anomaly in read_run(tmp_path).anomalies] == ["bad_line"]


def test_a_step_that_raises_is_logged_but_not_as_finished(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events", "rank", rank=0)
    with pytest.raises(KeyError), log.span("step", step=3) as span:
        span["loss"] = 1.5
        raise KeyError("x")
    log.close()
    (event,) = read_run(tmp_path).named("step")
    assert event.finished_step is None
    assert (event.fields["error"], event.fields["loss"]) == ("KeyError", 1.5)


def test_the_anchor_ties_the_monotonic_clock_to_the_wall_clock(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events", "supervisor", role="worker", pod="p-0", node="n-0")
    log.point("pod_start", at=time.monotonic() - 2)
    log.close()
    anchor = json.loads(log.path.read_text().splitlines()[0])
    assert (anchor["schema"], anchor["role"], anchor["pod"], anchor["node"]) == (1, "worker", "p-0", "n-0")
    assert (anchor["pid"], abs(anchor["wall"] - time.time()) < 5) == (os.getpid(), True)
    timeline = read_run(tmp_path)
    assert timeline.origin == pytest.approx(anchor["wall"] - 2, abs=0.5)
