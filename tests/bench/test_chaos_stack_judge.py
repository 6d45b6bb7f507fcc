"""The judge of the campaign `stack` says what was wrong with a job, and only that. Logs here are of imagined runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.stack.job import Ran
from bench.chaos.stack.judge import Findings, judge, not_closed
from bench.chaos.stack.schedule import Schedule
from holdfast.config import names
from holdfast.config.faults import Fault
from tests.goodput.builder import Run, begin, end, ledger_of, train

STEPS = 24
HANG: dict[str, Any] = {"kind": "hang", "rank": 0, "step": 6}
NAN: dict[str, Any] = {"kind": "nan_loss", "rank": 1, "step": 6}
FLIP: dict[str, Any] = {"kind": "bit_flip_stored", "rank": 0, "step": 6}
DISK: dict[str, Any] = {"kind": "full_disk", "rank": 0, "step": 3, "phase": "persist"}


def schedule(*faults: dict[str, Any]) -> Schedule:
    """A job of two ranks with these faults."""
    return replace(
        Schedule.draw(0), nodes=2, ranks_per_node=1, layers="job", spares=0, steps=STEPS, interval=3, faults=faults
    )


class Job:
    """The folder of an imagined job: five steps, something, and the rest in a second attempt."""

    def __init__(self, folder: Path) -> None:
        self.out = folder
        self.run = Run(folder / "run")
        self.run.path.mkdir()
        self.ranks = self.run.ranks(1.0)
        begin(self.ranks, 2.0)
        self.at = train(self.ranks, 2.0, 1, 5)
        self.ranks[0].point(5.5, "commit", step=3)
        self.began = 1

    def struck(self, fault: dict[str, Any], event: str = "fault") -> None:
        """The fault fires now."""
        whole = Fault(**fault)
        (self.run.path / names.FAULTS).mkdir(exist_ok=True)
        (self.run.path / names.FAULTS / f"{whole.id}.json").write_text("{}")
        self.ranks[whole.rank].point(self.at, event, id=whole.id, kind=whole.kind, rank=whole.rank, step=whole.step)

    def anew(self, step: int, *, seen: bool = True, skipped: bool = False) -> None:
        """The ranks end, and a second attempt goes on from this step."""
        if seen:
            end(self.ranks, self.at + 1.0, "exception", step=6)
        self.ranks = self.run.ranks(self.at + 2.0, cycle=1)
        begin(self.ranks, self.at + 2.0)
        for rank in self.ranks:
            if skipped:
                rank.point(self.at + 2.5, "skipped", folder=names.step_folder(3), why="block 0 has another checksum")
            if step:
                rank.span(self.at + 2.5, self.at + 3.0, "restore", step=step)
        self.at = train(self.ranks, self.at + 3.0, step + 1, 6)
        self.began = 7

    def complete(self, steps: int = STEPS) -> None:
        """Train to the end."""
        self.at = train(self.ranks, self.at, max(6, self.began), steps, 0.1)
        end(self.ranks, self.at, "complete", step=steps)
        (self.run.path / names.COMPLETE).write_text(json.dumps({"step": steps}))

    def terminal(self, code: int) -> None:
        """The run is ended for good."""
        (self.run.path / names.TERMINAL).write_text(json.dumps({"code": code, "reason": "mean loss nan"}))

    def ran(self, code: int | None = 0, **fields: Any) -> Ran:
        """How `holdfast run` ended."""
        return Ran(self.out, code, 30.0, **fields)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job after five steps."""
    made = Job(tmp_path)
    yield made
    made.run.close()


def verdict(job: Job, *faults: dict[str, Any], code: int | None = 0, **fields: Any) -> Findings:
    """The judge's, without complaints of the watch."""
    return judge(schedule(*faults), job.ran(code, **fields), [])


def test_a_job_that_got_over_its_fault_kept_every_promise(job: Job) -> None:
    job.struck(HANG)
    job.anew(3)
    job.complete()
    found = verdict(job, HANG)
    assert (found.wrong, found.end, found.restarts) == ([], "complete", 1)
    assert found.struck == ("hang-rank0-step6",) and found.unattributed < 0.01


def test_an_attempt_that_goes_on_from_less_than_was_committed_has_lost_a_commit(job: Job) -> None:
    job.struck(HANG)
    job.anew(0)
    job.complete()
    expected = "g1-c1-r0 went on from step 0, and step 3 was committed before it began"
    assert verdict(job, HANG).wrong == [expected]


def test_a_damaged_commit_that_is_passed_over_aloud_is_not_lost(job: Job) -> None:
    job.struck(HANG)
    job.anew(0, skipped=True)
    job.complete()
    assert verdict(job, HANG, FLIP).wrong == []


def test_a_fault_that_never_struck_is_missed(job: Job) -> None:
    job.complete()
    assert verdict(job, HANG).wrong == ["fault hang-rank0-step6 never struck"]


def test_a_fault_of_which_nothing_is_on_record_was_not_noticed(job: Job) -> None:
    job.struck(HANG, event="something_else")
    job.complete()
    assert verdict(job, HANG).wrong == ["fault hang-rank0-step6 struck, and nothing noticed it (silent)"]


def test_a_save_that_had_to_fail_and_did_not_was_not_noticed(job: Job) -> None:
    job.struck(DISK, event="disturbance")
    job.complete()
    fault = Fault(**DISK).id
    assert verdict(job, DISK).wrong == [f"fault {fault} struck, and nothing noticed it (save_failed)"]
    job.ranks[0].point(3.0, "save_failed", step=1, error="of another save, before it")
    assert verdict(job, DISK).wrong != []
    job.ranks[0].point(job.at, "save_failed", step=3, error="no space left")
    assert verdict(job, DISK).wrong == []


def test_a_save_that_ends_with_its_attempt_need_not_say_that_it_failed(job: Job) -> None:
    job.struck(DISK, event="disturbance")
    job.struck(HANG)
    job.anew(3)
    job.complete()
    assert verdict(job, DISK, HANG).wrong == []


def test_a_hang_is_a_failure(job: Job) -> None:
    assert verdict(job, code=None).wrong[0] == "it had not ended after 30 s"
    assert verdict(job, code=None).end == "hang"


def test_what_is_left_alive_is_a_failure(job: Job) -> None:
    job.complete()
    assert verdict(job, left=["process 7 S - python"]).wrong == ["left alive: process 7 S - python"]


def test_what_the_watch_complained_of_is_a_failure(job: Job) -> None:
    job.complete()
    assert judge(schedule(), job.ran(), ["LATEST names nothing"]).wrong == ["LATEST names nothing"]


def test_an_end_for_good_must_be_the_one_that_is_expected(job: Job) -> None:
    job.struck(NAN, event="disturbance")
    job.ranks[0].point(job.at, "bad_loss", step=6, why="nan")
    job.terminal(names.EXIT_GIVE_UP)
    assert verdict(job, NAN, code=names.EXIT_GIVE_UP).wrong == []
    wrong = verdict(job, HANG, code=names.EXIT_GIVE_UP).wrong
    assert wrong == ["it ended as terminal 93, not as complete: mean loss nan"]


def test_after_an_end_for_good_later_faults_need_not_strike(job: Job) -> None:
    job.struck(NAN, event="disturbance")
    job.ranks[0].point(job.at, "bad_loss", step=6, why="nan")
    job.terminal(names.EXIT_GIVE_UP)
    assert verdict(job, NAN, {**HANG, "step": 12}, code=names.EXIT_GIVE_UP).wrong == []


def test_a_job_that_should_have_ended_for_good_and_did_not_is_a_failure(job: Job) -> None:
    job.struck(NAN, event="disturbance")
    job.ranks[0].point(job.at, "bad_loss", step=6, why="nan")
    job.complete()
    assert verdict(job, NAN).wrong == ["it ended as complete, not as terminal 93"]


@pytest.mark.parametrize("code", [1, 130])
def test_an_exit_code_that_says_something_else_is_a_failure(job: Job, code: int) -> None:
    job.complete()
    assert verdict(job, code=code).wrong == [f"it ended as exit {code}, not as complete"]


def test_a_job_that_completed_fewer_steps_is_not_complete(job: Job) -> None:
    job.complete(STEPS - 1)
    assert verdict(job).wrong == ["it ended as exit 0, not as complete"]


def test_a_job_that_never_began_is_judged_too(tmp_path: Path) -> None:
    found = judge(schedule(HANG), Ran(tmp_path / "nothing", 2, 1.0), [])
    assert found.wrong == ["it ended as exit 2, not as complete", "fault hang-rank0-step6 never struck"]


def test_a_ledger_must_close_and_say_why_it_knows_too_little(job: Job) -> None:
    job.complete()
    ledger = ledger_of(job.run)
    assert list(not_closed(ledger)) == []
    more = dict(ledger.buckets) | {"other": ledger.buckets["other"] + 1e-6}
    assert "buckets sum to" in next(not_closed(replace(ledger, buckets=more)))
    moved = dict(ledger.buckets) | {"other": -2.0, "init": ledger.buckets["init"] + ledger.buckets["other"] + 2.0}
    assert list(not_closed(replace(ledger, buckets=moved))) == ["negative seconds in other"]
    unknown = dict(ledger.buckets) | {"unattributed": ledger.wall_s * 0.02}
    unknown["productive"] -= unknown["unattributed"] - ledger.buckets["unattributed"]
    assert any("does not say why" in text for text in not_closed(replace(ledger, buckets=unknown, anomalies=())))
