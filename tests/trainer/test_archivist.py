"""The process that archives event logs: when it is started, that it archives, and that it ends with its parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from holdfast.goodput.events import EventLog
from holdfast.goodput.reader import read_run
from trainer.pod import archivist
from trainer.pod.archivist import FIRST_S, PAUSE_S, Archivist

LIMIT_S = 60.0


class Clock:
    """The time module, as far as the archivist reads it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def pod(tmp_path: Path) -> Any:
    return SimpleNamespace(environment={"A": "1"}, run=SimpleNamespace(events=tmp_path / "events"))


def test_it_is_started_after_a_while_and_again_when_it_has_ended_but_not_at_once(pod: Any) -> None:
    clock, lives = Clock(), True
    process = SimpleNamespace(poll=lambda: None if lives else 1)
    with patch.object(archivist, "time", clock), patch.object(subprocess, "Popen", return_value=process) as started:
        kept = Archivist(pod)
        kept.keep()
        assert started.call_count == 0  # a short run pays nothing
        clock.now += FIRST_S
        kept.keep()
        kept.keep()
        assert started.call_count == 1
        lives = False
        kept.keep()
        assert started.call_count == 1
        clock.now += PAUSE_S
        kept.keep()
    assert started.call_count == 2
    assert started.call_args.args[0][1:] == ["-m", "holdfast.goodput.compaction", str(pod.run.events)]


def test_one_that_cannot_be_started_is_tried_again_later_and_hurts_nobody(pod: Any) -> None:
    clock = Clock()
    with (
        patch.object(archivist, "time", clock),
        patch.object(subprocess, "Popen", side_effect=OSError("no memory")) as started,
    ):
        kept = Archivist(pod)
        clock.now += FIRST_S
        kept.keep()
        kept.keep()
        assert started.call_count == 1


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "holdfast.goodput.compaction", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


def eventually(condition: Any) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_it_archives_a_long_log_and_ends_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    log = EventLog(folder, "rank", rank=0, world_size=1)
    for step in range(20_000):
        log.point("step", step=step, loss=2.345678901234567)
    log.close()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        try:
            assert eventually(
                lambda: len(list(folder.glob("*.parquet"))) == 1 and len(list(folder.glob("*.jsonl"))) == 1
            )
            assert process.nice() == 19
            parent.kill()
            assert eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        finally:
            parent.kill()
            if process.is_running():
                process.kill()
    steps = [event.whole("step") for event in read_run(tmp_path).named("step")]
    assert steps == list(range(20_000))
