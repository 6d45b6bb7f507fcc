"""Budgets of restarts: counted from records that others write, by progress and by time, across control pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import lineage
from holdfast.config import load_profile, names
from holdfast.run_directory import Owner, RunDirectory, StaleGeneration, Terminal, write_atomically
from holdfast.terminal import set_aside
from trainer.restart.budget import Budget


class Run:
    """A run whose attempts begin when the test says so, at the times that it says."""

    def __init__(self, folder: Path, *limits: str) -> None:
        self.run = RunDirectory(folder / "run")
        self.limits = load_profile("cpu-test", limits).recovery
        self.now = 1000.0
        self.owner: Owner | None = None
        self.start()

    def start(self, attempt: int = 0, job: str = "job") -> None:
        """A new control pod: of the same job (a JobSet restart) or of another, which is a start by hand."""
        self.owner = self.run.take(nodes=1, job=job, jobset_attempt=attempt, pod="control", lease_s=0.1)
        self.budget = Budget(self.run, self.owner, self.limits, lambda: self.now)

    def attempt(
        self, cycle: int, start: int = 0, *, after_s: float = 10.0, commits: int | None = None
    ) -> Terminal | None:
        """`commits` is committed, then an attempt of this cycle begins after a while, goes on from `start`."""
        assert self.owner is not None
        if commits is not None:
            write_atomically(self.run.checkpoints / names.LATEST, names.step_folder(commits))
            self.budget.count()
        self.now += after_s
        name = f"g{self.owner.generation}-c{cycle}-r0"
        lineage.begin(self.run, name, self.owner.generation)
        found = self.budget.count()
        lineage.started(self.run, name, start)
        return found or self.budget.count()


def test_restarts_without_a_newer_commit_end_the_run_and_one_with_a_newer_commit_begins_the_count_anew(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    assert run.attempt(0) is None
    assert run.attempt(1) is None and run.attempt(2) is None
    assert run.attempt(3, 5, commits=5) is None, "the third restart, but step 5 is new"
    assert run.attempt(4, 5) is None and run.attempt(5, 5, commits=5) is None
    write_atomically(
        run.run.attempts / "g1-c5-r0.rank1.json",
        json.dumps({"rank": 1, "step": 7, "fingerprint": "KeyError at train.py:f", "message": "'x'"}),
    )
    terminal = run.attempt(6, 5)
    assert terminal is not None and terminal == run.run.terminal() and terminal.code == 93
    for fact in (
        "3 restarts without a newer commit than step 5 (recovery.max_restarts_without_progress=3)",
        "g1-c4-r0, g1-c5-r0, g1-c6-r0",
        "The last failure: rank 1 at step 7 of g1-c5: KeyError at train.py:f: 'x'",
    ):
        assert fact in terminal.reason, terminal.reason


def test_a_new_control_pod_goes_on_counting_and_a_start_by_hand_does_not(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    run.attempt(0)
    run.attempt(1)
    run.start(attempt=1)
    assert run.attempt(0) is None
    run.run.release(2)
    run.start(job="by hand")
    assert [run.attempt(cycle) for cycle in (0, 1, 2)] == [None, None, None]
    run.start(attempt=1, job="by hand")
    terminal = run.attempt(0)
    assert terminal is not None and "g3-c1-r0, g3-c2-r0, g4-c0-r0" in terminal.reason


def test_restarts_are_counted_over_one_hour_whether_or_not_they_made_progress(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_per_hour=3")
    for cycle in range(8):
        assert run.attempt(cycle, cycle * 5, after_s=1300, commits=cycle * 5) is None, "at most 3 in any hour"
    terminal = run.attempt(8, 40, after_s=590, commits=40)
    assert terminal is not None and "4 restarts within an hour (recovery.max_restarts_per_hour=3)" in terminal.reason


def test_lost_time_is_what_was_done_since_the_commit_that_a_restart_went_back_to(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_lost_s=100")
    run.attempt(0)
    assert run.attempt(1, 5, after_s=30, commits=5) is None  # 30 s
    run.now += 4000  # the hour is over, and the sum is not forgotten
    assert run.attempt(2, 10, after_s=60, commits=10) is None  # 60 s more
    terminal = run.attempt(3, 10, after_s=5)  # 65 s since step 10 was committed
    assert terminal is not None and "restarts have cost 155 s in all (recovery.max_lost_s=100)" in terminal.reason


def test_what_was_counted_is_set_aside_with_the_terminal_record(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    assert [run.attempt(cycle) is None for cycle in range(4)] == [True, True, True, False]
    aside = set_aside(run.run)
    assert aside is not None and aside.name == "TERMINAL.1.json" and run.run.terminal() is None
    assert (run.run.attempts / "before-TERMINAL.1" / names.BUDGET).exists()
    run.start(attempt=1)
    assert [run.attempt(cycle) for cycle in (0, 1)] == [None, None]


def test_an_unreadable_list_of_attempts_or_budget_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    run.attempt(0)
    whole = (run.run.attempts / names.LINEAGE).read_text()
    (run.run.attempts / names.LINEAGE).write_text("{")
    assert run.budget.count() is None
    (run.run.attempts / names.LINEAGE).write_text(whole)
    (run.run.attempts / names.BUDGET).write_text("[1]")
    run.start(attempt=1)
    assert run.attempt(0) is None


def test_an_older_control_pod_judges_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    run.attempt(0)
    old = run.budget
    run.start(attempt=1)
    lineage.begin(run.run, "g2-c0-r0", 2)
    try:
        old.count()
    except StaleGeneration:
        pass
    else:
        raise AssertionError("it wrote into the run of another generation")
    assert run.run.terminal() is None


def test_storage_that_takes_nothing_ends_no_run_and_the_next_look_counts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    for cycle in range(3):
        run.attempt(cycle)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert run.owner is not None
    lineage.begin(run.run, "g1-c3-r0", 1)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.restart.budget.write_atomically", full)
        assert run.budget.look() is None and run.run.terminal() is None
    terminal = run.budget.count()
    assert terminal is not None and "3 restarts without a newer commit" in terminal.reason


def test_progress_after_going_back_to_an_older_step_is_progress(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    write_atomically(run.run.checkpoints / names.LATEST, names.step_folder(200))
    run.run.release(1)
    run.start(job="again")
    assert run.attempt(0, 50) is None, "resume.step=50"
    for cycle, committed in enumerate((60, 70, 80, 90), start=1):
        assert run.attempt(cycle, committed, commits=committed) is None
    assert [run.attempt(cycle, 90) is None for cycle in (5, 6, 7)] == [True, True, False]


def test_the_time_before_a_start_by_hand_is_nobodys_loss(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_lost_s=60")
    assert run.attempt(0) is None
    assert run.attempt(1, 100, commits=100) is None
    run.now += 7 * 86_400
    run.run.release(1)
    run.start(job="next-week")
    assert run.attempt(0, 100) is None
    assert run.attempt(1, 100) is None, "10 s are lost, and not a week"
    assert run.attempt(2, 100, after_s=61) is not None


def fails_early(run: Run, *records: str, after_s: float = 61.0) -> Terminal | None:
    """Ranks fail, or die, in attempts that never begin: these records are all they leave. What is said of it."""
    run.now += after_s
    for record in records:
        failure = {"consequence": True, "fingerprint": "RuntimeError at group.py:new", "message": "no peer"}
        write_atomically(run.run.attempts / f"{record}.json", json.dumps(failure))
    run.budget.count()
    return run.budget.count()


def test_a_cycle_whose_attempts_all_fail_before_they_begin_is_a_restart_too(tmp_path: Path) -> None:
    """Seed 157 of the schedules: no rank could reach its monitor, so none began, and nothing counted."""
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    assert run.attempt(0) is None
    assert fails_early(run, "g1-c0-r1.rank0", "g1-c1-r0.rank1", "g1-c1-r1.rank1", "g1-c1-r1.rank0") is None
    assert fails_early(run, "g1-c2.death1") is None, "a hang in start-up leaves no exception"
    terminal = fails_early(run, "g1-c10-r0.rank1")
    assert terminal is not None and "3 restarts without a newer commit than step 0" in terminal.reason
    assert "g1-c1, g1-c2, g1-c10" in terminal.reason


def test_the_first_cycle_is_no_restart_and_a_start_by_hand_forgets_those_before(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3")
    assert fails_early(run, "g1-c0-r0.rank0", "g1-c0-r1.rank0") is None
    assert fails_early(run, "g1-c1-r0.rank0") is None and fails_early(run, "g1-c2-r0.rank0") is None
    run.run.release(1)
    run.start(job="by hand")
    for cycle in range(3):
        assert fails_early(run, f"g2-c{cycle}-r0.rank0") is None
    assert run.attempt(3, after_s=61) is not None


def test_a_network_that_is_away_for_minutes_is_waited_for_and_one_that_is_away_for_an_hour_is_not(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3", "recovery.max_restarts_per_hour=20")
    assert run.attempt(0) is None
    for cycle in range(1, 21):
        assert fails_early(run, f"g1-c{cycle}-r0.rank0", after_s=6) is None, "two minutes"
    terminal = fails_early(run, "g1-c21-r0.rank0", after_s=6)
    assert terminal is not None and "21 restarts within an hour" in terminal.reason
    assert "of g1-c21: RuntimeError at group.py:new: no peer" in terminal.reason, "better than nothing"


def test_a_cycle_that_begins_an_attempt_after_all_is_one_restart(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_restarts_without_progress=3", "recovery.max_lost_s=300")
    assert run.attempt(0) is None
    for cycle in (1, 2):
        assert fails_early(run, f"g1-c{cycle}-r0.rank1") is None
        assert run.attempt(cycle) is None
    terminal = fails_early(run, "g1-c3-r0.rank1")
    assert terminal is not None and "g1-c1-r0, g1-c2-r0, g1-c3" in terminal.reason


def test_what_a_cycle_that_begins_late_has_cost_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, "recovery.max_lost_s=100")
    assert run.attempt(0) is None
    assert fails_early(run, "g1-c1-r0.rank1") is None
    terminal = run.attempt(1, after_s=50)
    assert terminal is not None and "restarts have cost 121 s in all" in terminal.reason
