"""A rank that dies without an exception is recorded with its step, and the same death again and again ends the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, write_atomically
from trainer.restart import deaths, who
from trainer.restart.deaths import Deaths, begun_step
from trainer.runtime import Identity

HANG = "[Cycle 0] Section 'step' has been open for 5.02 seconds. Timeout is 5.00 seconds."


class Pod:
    """One pod of a run; its launcher says what the test lets it say."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder / "run")
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.owner = self.run.take(nodes=1, job="job", jobset_attempt=0, pod="control", lease_s=0.1)
        self.deaths = Deaths(self.run, self.scratch, 1, same_step_limit=3)

    def dies(self, cycle: int, code: int, *, finished: int | None = 11, rank: int = 1, before: str = "") -> None:
        """A rank of this cycle finished a step, then ended, and that is on record."""
        self.says(cycle, code, finished=finished, rank=rank, before=before)
        assert self.deaths.settle()

    def says(self, cycle: int, code: int, *, finished: int | None = 11, rank: int = 1, before: str = "") -> None:
        """A rank of this cycle finished a step, then ended: the launcher says so."""
        log = EventLog(self.run.events, "rank", rank=rank)
        log.point("attempt_start", restart=0)
        if finished is not None:
            log.lasted("step", 0, step=finished)
        identity = Identity(rank, 2, 0, 1, cycle, "pod", "node", "")
        who.say({names.ENV_SCRATCH: str(self.scratch)}, identity, log.path)
        if before:
            self.deaths.on_line(before)
        self.deaths.on_line(f"failed (exitcode: {code}) local_rank: 0 (pid: 4711) of binary: python")

    def records(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in sorted(self.run.attempts.glob("*.death*.json"))]


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_the_same_death_at_the_same_step_on_three_attempts_ends_the_run_whichever_rank_it_is(pod: Pod) -> None:
    pod.dies(0, -9, rank=1)
    pod.dies(1, -9, rank=0)
    assert pod.run.terminal() is None
    pod.dies(2, -9, rank=1)
    terminal = pod.run.terminal()
    assert terminal is not None and (terminal.code, terminal.rank, terminal.step) == (93, 1, 12)
    for fact in (
        "rank 1 ended by SIGKILL at step 12 on 3 attempts (g1-c0, g1-c1, g1-c2)",
        "out-of-memory",
        "rank1.log",
    ):
        assert fact in terminal.reason, terminal.reason


@pytest.mark.parametrize(
    "changed", [{"finished": 12}, {"code": -11}, {"finished": None}], ids=["step", "signal", "before the first step"]
)
def test_deaths_that_differ_are_not_added_up(pod: Pod, changed: dict[str, Any]) -> None:
    for cycle, death in enumerate(({}, {}, changed)):
        pod.dies(cycle, **{"code": -9} | death)
    assert pod.run.terminal() is None and len(pod.records()) == 3


def test_deaths_before_the_first_step_count_as_alike_until_a_newer_step_is_committed(pod: Pod) -> None:
    """Ranks killed in three start-ups of one long run have nothing to do with one another."""
    for cycle, committed in enumerate((0, 10, 20, 20)):
        if committed:
            write_atomically(pod.run.checkpoints / names.step_folder(committed) / names.COMMITTED, "{}")
        pod.dies(cycle, 1, finished=None)
    assert pod.run.terminal() is None
    pod.dies(4, 1, finished=None)
    terminal = pod.run.terminal()
    assert terminal is not None and "exit code 1 before its first step after step 20 on 3 attempts" in terminal.reason


@pytest.mark.parametrize("code", [0, 75, 78, -15])
def test_ends_that_somebody_wanted_are_not_deaths(pod: Pod, code: int) -> None:
    pod.dies(0, code)
    assert pod.records() == []


def test_a_rank_that_raised_is_left_to_the_rule_for_exceptions(pod: Pod) -> None:
    write_atomically(pod.run.attempts / "g1-c0-r0.rank1.json", "{}")
    pod.dies(0, 1)
    assert pod.records() == []
    pod.dies(1, 1)
    assert [record["cycle"] for record in pod.records()] == ["g1-c1"]


def test_a_hang_that_the_rank_monitor_ended_is_called_so(pod: Pod) -> None:
    for cycle in range(3):
        pod.dies(cycle, -9, before=HANG)
    terminal = pod.run.terminal()
    assert terminal is not None and "ended a hang: Section 'step' has been open for 5.02 seconds" in terminal.reason
    assert "out-of-memory" not in terminal.reason


def test_hangs_before_the_first_step_are_on_record_and_end_no_run(pod: Pod) -> None:
    """A mount that stalls three times is no bug that a restart repeats; restarts without a newer commit are counted."""
    for cycle in range(4):
        pod.dies(cycle, -9, finished=None, before=HANG.replace("step", "restore"))
    assert len(pod.records()) == 4 and pod.run.terminal() is None
    for cycle in range(4, 6):
        pod.dies(cycle, -9, finished=None)
    assert pod.run.terminal() is None, "a kill of another cause is not alike"
    pod.dies(6, -9, finished=None)
    terminal = pod.run.terminal()
    assert terminal is not None and "on 3 attempts (g1-c4, g1-c5, g1-c6)" in terminal.reason


def test_storage_that_hangs_holds_up_no_line_of_the_launcher(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    hanging = RunDirectory.require_generation

    def hangs(run: RunDirectory, generation: int) -> None:
        assert answers.wait(30)
        hanging(run, generation)

    monkeypatch.setattr(RunDirectory, "require_generation", hangs)
    teller = threading.Thread(target=lambda: pod.says(0, -9), daemon=True)
    teller.start()
    teller.join(10)
    assert not teller.is_alive(), "the thread that empties the launcher's pipe waits for the storage"
    assert not pod.deaths.settle(0.2) and pod.records() == []
    answers.set()
    assert pod.deaths.settle() and len(pod.records()) == 1


def test_an_error_that_nobody_expected_does_not_hide_the_deaths_after_it(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "begun_step", lambda path: 1 // 0)
    pod.dies(0, -9)
    monkeypatch.undo()
    pod.dies(1, -9)
    assert len(pod.records()) == 1, "the second one is on record"


def test_whose_process_it_was_is_read_before_the_next_one_says_who_it_is(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr("trainer.restart.deaths.newest_committed", lambda _: answers.wait(30) and None)
    pod.says(0, -9, rank=1)
    pod.says(1, -9, rank=0)
    answers.set()
    assert pod.deaths.settle()
    assert [(record["cycle"], record["rank"]) for record in pod.records()] == [("g1-c0", 1), ("g1-c1", 0)]


def test_a_supervisor_of_an_older_generation_records_nothing_and_does_not_fail(pod: Pod) -> None:
    pod.run.take(nodes=1, job="job", jobset_attempt=1, pod="control", lease_s=0.1)
    pod.dies(0, -9)
    assert pod.records() == [] and pod.run.terminal() is None


def test_the_step_is_that_of_the_last_attempt_in_the_log_and_a_torn_line_does_no_harm(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "rank", rank=0)
    log.lasted("step", 0, step=7)
    log.lasted("step", 0, step=8, error="RuntimeError")
    assert begun_step(log.path) == 8, "a step that raised was begun, not finished"
    log.point("attempt_start", restart=1)
    assert begun_step(log.path) is None
    for step in range(9, 3000):
        log.lasted("step", 0, step=step)
    with open(log.path, "a") as file:
        file.write('{"t": 1, "name": "st')
    assert begun_step(log.path) == 3000
    assert begun_step(tmp_path / "missing") is None
