"""`python -m bench.chaos`: two campaigns, which seeds are done, what is kept, and what its exit code says."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.chaos import __main__ as chaos
from bench.chaos.stack import campaign, command
from bench.chaos.stack.job import Interrupted
from bench.chaos.stack.records import Line
from bench.chaos.stack.schedule import Schedule
from bench.chaos.stack.weights import BrokenPeace


def _invoke(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chaos", *words])
    return chaos.main()


@pytest.mark.parametrize(
    "words",
    [
        ("--seed", "3"),
        ("--campaign", "kills", "--seed", "3"),
        ("--result", "file.json"),
        ("--campaign", "stack", "--seeds", "0"),
        ("--campaign", "stack", "--jobs", "-1"),
    ],
)
def test_words_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        _invoke(monkeypatch, *words)
    assert ended.value.code == 2


@pytest.mark.parametrize(("kills", "stack", "code"), [(True, True, 0), (False, True, 1), (True, False, 1)])
def test_both_campaigns_are_done_whatever_came_of_the_first(
    monkeypatch: pytest.MonkeyPatch, kills: bool, stack: bool, code: int
) -> None:
    done: list[str] = []

    def fake(name: str, held: bool) -> Callable[[argparse.Namespace, dict[str, Any]], bool]:
        def run(options: argparse.Namespace, about: dict[str, Any]) -> bool:
            done.append(name)
            return held

        return run

    monkeypatch.setattr(chaos, "CAMPAIGNS", {"kills": fake("kills", kills), "stack": fake("stack", stack)})
    assert _invoke(monkeypatch, "--seeds", "2") == code
    assert done == ["kills", "stack"]


class Quiet:
    """In place of the jobs in peace."""

    def __init__(self, *_: object) -> None:
        """Takes what they take."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


class Trials:
    """In place of real jobs. wrong: seeds that break a promise; broken: seeds at which the peace is broken."""

    def __init__(self) -> None:
        self.wrong: set[int] = set()
        self.broken: set[int] = set()
        self.done: list[int] = []

    def __call__(
        self, schedule: Schedule, out: Path, weights: Quiet, stopping: threading.Event
    ) -> tuple[Line, list[str]]:
        if stopping.is_set():
            raise Interrupted
        if schedule.seed in self.broken:
            raise BrokenPeace("exit code 1")
        self.done.append(schedule.seed)
        why = ["final weights differ"] if schedule.seed in self.wrong else []
        line = Line(schedule.seed, "2x1 job", [], ["hang"], "bit_equal", "complete", not why, 9.0, 1, 0.0, why)
        return line, ["process 7 S - python"] if why else []


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    """Jobs that take no time."""
    made = Trials()
    monkeypatch.setattr(campaign, "attempt", made)
    monkeypatch.setattr(campaign, "Weights", Quiet)
    monkeypatch.setattr(command, "code_sha256", lambda: "code")
    yield made


def _run(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    places = ("--out", str(folder / "work"), "--result", str(folder / "chaos.json"))
    return _invoke(monkeypatch, "--campaign", "stack", *places, *words)


def _kept(folder: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((folder / "chaos.json").read_text())
    return kept


def test_an_invocation_goes_on_where_the_one_before_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials
) -> None:
    assert _run(monkeypatch, tmp_path, "--seeds", "3") == 0
    assert _run(monkeypatch, tmp_path, "--seeds", "5", "--jobs", "2") == 0
    assert sorted(trials.done) == [0, 1, 2, 3, 4]
    kept = _kept(tmp_path)
    assert (kept["schedules"], kept["complete"], kept["failed"], kept["kinds"]) == (5, 5, [], {"hang": 5})
    assert {"date", "commit", "hardware", "versions", "code_sha256"} <= kept.keys()


def test_a_seed_that_breaks_a_promise_is_named_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.wrong = {1}
    assert _run(monkeypatch, tmp_path, "--seeds", "3") == 1
    assert _kept(tmp_path)["failed"] == [1]
    shown = capsys.readouterr().out
    assert "FAILED final weights differ" in shown and "| process 7 S - python" in shown
    again = "python -m bench.chaos --campaign stack --seed 1"
    assert again in shown
    trials.done.clear()
    assert _run(monkeypatch, tmp_path, *again.split()[3:]) == 1 and trials.done == [1]
    assert _kept(tmp_path)["schedules"] == 3, "a repeated seed is not recorded"


def test_no_seed_is_begun_after_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials) -> None:
    assert _run(monkeypatch, tmp_path, "--seeds", "3", "--limit-s", "0") == 0
    assert trials.done == [] and not (tmp_path / "chaos.json").exists()


def test_without_a_job_in_peace_nothing_more_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials
) -> None:
    trials.broken = {2}
    assert _run(monkeypatch, tmp_path, "--seeds", "50", "--jobs", "1") == 1
    assert 50 > len(trials.done) >= 2


def test_what_was_done_while_the_code_changed_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: Trials
) -> None:
    codes = iter(["before", "after"])
    monkeypatch.setattr(command, "code_sha256", lambda: next(codes))
    assert _run(monkeypatch, tmp_path, "--seeds", "1") == 1
    assert not (tmp_path / "chaos.json").exists()
