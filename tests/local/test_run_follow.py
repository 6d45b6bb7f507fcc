"""Events are followed while they are written."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.commands.run_follow import POLL_S, EventTail, TrainingEvent
from holdfast.goodput.events import EventLog


def poll(tail: EventTail) -> list[TrainingEvent]:
    time.sleep(POLL_S)
    return list(tail.poll())


def test_new_lines_come_once_with_the_anchor_of_their_file(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    log = EventLog(tmp_path, "rank", rank=1, pod="p")
    log.point("commit", step=3)
    anchor, commit = poll(tail)
    assert (anchor.name, anchor.rank, anchor.source) == ("anchor", 1, "rank")
    assert (commit.name, commit.step, commit.anchor["pod"]) == ("commit", 3, "p")
    assert poll(tail) == []
    log.point("commit", step=4)
    assert [event.step for event in poll(tail)] == [4]
    log.close()


def test_a_line_is_read_when_it_is_whole_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    log = EventLog(tmp_path, "rank", rank=0)
    poll(tail)
    with open(log.path, "ab") as file:
        file.write(b'{"t": 1.0, "name": "st')
        file.flush()
        assert poll(tail) == []
        file.write(b'ep", "step": 7}\n[1]\n{"t": "x", "name": "y"}\n{broken\n')
        file.flush()
        assert [event.step for event in poll(tail)] == [7]
    log.close()


def test_what_is_there_already_and_what_the_runner_writes_is_left_out(tmp_path: Path) -> None:
    old, runner = EventLog(tmp_path, "rank", rank=0), EventLog(tmp_path, "runner")
    tail = EventTail(tmp_path)
    old.point("step", step=1)
    runner.point("run_start")
    assert poll(tail) == []
    old.close()
    runner.close()


def test_a_folder_that_does_not_exist_yet_has_no_events(tmp_path: Path) -> None:
    tail = EventTail(tmp_path / "events")
    assert poll(tail) == []
    EventLog(tmp_path / "events", "rank", rank=0).close()
    assert len(poll(tail)) == 1
