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
from unittest.mock import patch

import pytest

from holdfast.goodput import events
from holdfast.goodput.events import EventLog, segment_name, segment_of
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


def filled(log: EventLog, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        log.point("step", step=number, text="x" * 40)


def test_a_long_log_is_many_segments_and_one_process(tmp_path: Path) -> None:
    with patch.object(events, "SEGMENT_BYTES", 1000):
        log = EventLog(tmp_path / "events", "rank", rank=0, world_size=1, pod="p")
        filled(log, 200)
        log.close()
    files = sorted(path.name for path in (tmp_path / "events").iterdir())
    assert len(files) > 10
    assert {segment_of(name)[0] for name in files} == {log.path.name}
    assert sorted(segment_of(name)[1] for name in files) == list(range(len(files)))
    assert all(path.stat().st_size < 1200 for path in (tmp_path / "events").iterdir())
    timeline = read_run(tmp_path)
    assert [event.whole("step") for event in timeline.named("step")] == list(range(200))
    assert [(process.file, process.pod) for process in timeline.processes] == [(log.path.name, "p")]
    assert timeline.anomalies == ()


@pytest.mark.parametrize("number", [0, 1, 9999, 10000])
def test_the_name_of_a_segment_says_whose_it_is(number: int) -> None:
    first = "rank-rank0-podx.s0001.host.12.345.jsonl"
    assert segment_of(segment_name(first, number)) == (first, number)


def test_without_its_first_segments_a_log_still_reads(tmp_path: Path) -> None:
    with patch.object(events, "SEGMENT_BYTES", 1000):
        log = EventLog(tmp_path / "events", "rank", rank=0, world_size=1)
        filled(log, 100)
        log.close()
    log.path.unlink()
    timeline = read_run(tmp_path)
    steps = [event.whole("step") or 0 for event in timeline.named("step")]
    assert steps == list(range(steps[0], 100))
    assert timeline.anomalies == ()


def test_a_log_that_cannot_open_its_next_segment_goes_on_in_the_old_one(tmp_path: Path) -> None:
    real, refused = os.open, []

    def refuse(path: Path, *arguments: int) -> int:
        if ".s0001." in path.name:
            refused.append(path)
            raise OSError("quota")
        return real(path, *arguments)

    with patch.object(events, "SEGMENT_BYTES", 1000):
        log = EventLog(tmp_path / "events", "rank", rank=0)
        with patch.object(os, "open", refuse):
            filled(log, 30)
        filled(log, 30, first=30)
        log.close()
    assert len(refused) < 4  # not at every line
    assert [event.whole("step") for event in read_run(tmp_path).named("step")] == list(range(60))
    assert len(list((tmp_path / "events").iterdir())) > 1


class Interrupted(BaseException):
    """Stands for the exception with which NVRx ends an attempt, wherever it is."""


@pytest.mark.parametrize("call", ["open", "fstat", "write"])
def test_a_restart_in_the_middle_of_a_change_of_segments_writes_nothing_to_the_old_one(
    tmp_path: Path, call: str
) -> None:
    real = getattr(os, call)

    def interrupt(*arguments: object) -> object:
        result = real(*arguments)
        following = list((tmp_path / "events").glob("*.s0001.jsonl"))
        if following and (call != "write" or following[0].stat().st_size):
            raise Interrupted
        return result

    with patch.object(events, "SEGMENT_BYTES", 1000):
        log = EventLog(tmp_path / "events", "rank", rank=0)
        with patch.object(os, call, interrupt), pytest.raises(Interrupted):
            filled(log, 100)
        old = log.path.read_bytes()
        filled(log, 5, first=1000)
        log.close()
    assert log.path.read_bytes() == old
    timeline = read_run(tmp_path)
    steps = [event.whole("step") or 0 for event in timeline.named("step")]
    assert steps == [*range(len(steps) - 5), *range(1000, 1005)]
    assert timeline.anomalies == ()
