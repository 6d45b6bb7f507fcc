"""The lineage: one current attempt, and which saves lie on the way to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import lineage
from holdfast.lineage import Begun, StaleAttempt, in_history
from holdfast.run_directory import RunDirectory, StaleGeneration


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of generation 1."""
    run = RunDirectory(tmp_path)
    run.take(nodes=1, job="job", jobset_attempt=0, pod="pod", lease_s=0.1)
    return run


def test_attempts_stand_in_the_order_in_which_they_began(run: RunDirectory) -> None:
    assert lineage.read(run) == []
    lineage.begin(run, "a", 1)
    assert lineage.read(run) == [Begun("a", None)]
    lineage.started(run, "a", 0)
    lineage.begin(run, "b", 1)
    lineage.started(run, "b", 10)
    assert lineage.read(run) == [Begun("a", 0), Begun("b", 10)]


def test_only_the_newest_attempt_is_current(run: RunDirectory) -> None:
    with pytest.raises(StaleAttempt, match="attempt a was aborted: nothing is the current one"):
        lineage.require_current(run, "a")
    lineage.begin(run, "a", 1)
    lineage.require_current(run, "a")
    lineage.begin(run, "b", 1)
    lineage.require_current(run, "b")
    with pytest.raises(StaleAttempt, match="attempt a was aborted: b is the current one"):
        lineage.require_current(run, "a")
    with pytest.raises(StaleAttempt):
        lineage.started(run, "a", 5)
    assert lineage.read(run) == [Begun("a", None), Begun("b", None)]


def test_an_older_generation_cannot_begin(run: RunDirectory) -> None:
    lineage.begin(run, "a", 1)
    run.take(nodes=1, job="job", jobset_attempt=1, pod="newer", lease_s=0.1)
    with pytest.raises(StaleGeneration):
        lineage.begin(run, "b", 1)
    assert lineage.read(run) == [Begun("a", None)]


@pytest.mark.parametrize(
    ("later", "step", "belongs"),
    [
        ([], 20, True),
        ([Begun("b", 20)], 20, True),
        ([Begun("b", 20), Begun("c", 30)], 20, True),
        ([Begun("b", 10)], 20, False),  # b went back behind it
        ([Begun("b", 10)], 10, True),
        ([Begun("b", 30), Begun("c", 10)], 20, False),
        ([Begun("b", None)], 20, True),  # b does not know yet, and asks
        ([Begun("b", 0)], 20, False),
    ],
)
def test_a_save_belongs_to_the_history_unless_somebody_went_back_behind_it(
    later: list[Begun], step: int, belongs: bool
) -> None:
    assert in_history([Begun("a", 0), *later], "a", step) is belongs


def test_a_save_of_an_unknown_attempt_or_of_one_that_never_knew_its_start_does_not_belong() -> None:
    assert not in_history([Begun("a", 0)], "x", 5)
    assert not in_history([Begun("a", None), Begun("b", 0)], "a", 5)
    assert not in_history([], "a", 5)
