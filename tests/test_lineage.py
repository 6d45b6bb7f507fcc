"""The lineage: one current attempt, and which saves lie on the way to it."""

from __future__ import annotations

import errno
import os
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


@pytest.mark.parametrize("older", ["g1-c10-r0", "g1-c9-r3", "g0-c11-r0"])
def test_an_attempt_cannot_begin_after_a_newer_one(run: RunDirectory, older: str) -> None:
    """Its rank 0 was stuck in the file system, say. Numbers are compared as numbers: c9 is older than c10."""
    lineage.begin(run, "g1-c9-r2", 1)
    lineage.begin(run, "g1-c10-r1", 1)
    with pytest.raises(StaleAttempt, match=f"attempt {older} was aborted: g1-c10-r1 has begun after it"):
        lineage.begin(run, older, 1)
    assert lineage.read(run) == [Begun("g1-c9-r2", None), Begun("g1-c10-r1", None)]
    for newer in ("g1-c10-r2", "g1-c11-r0", "g2-c0-r0"):
        lineage.begin(run, newer, 1)
        lineage.require_current(run, newer)


def test_an_attempt_that_begins_again_under_its_name_takes_its_own_place(run: RunDirectory) -> None:
    lineage.begin(run, "g1-c0-r0", 1)
    lineage.begin(run, "g1-c1-r0", 1)
    lineage.started(run, "g1-c1-r0", 5)
    lineage.begin(run, "g1-c1-r0", 1)
    assert lineage.read(run) == [Begun("g1-c0-r0", None), Begun("g1-c1-r0", None)]


def test_cycles_counts_the_attempts_of_one_generation(run: RunDirectory) -> None:
    assert lineage.cycles(run, 1) == 0
    lineage.begin(run, "g1-c0-r0", 1, lineage.adopted([(10, "g1-c7-r0"), (20, "g2-c0-r0")]))
    lineage.begin(run, "g1-c1-r0", 1)
    lineage.begin(run, "g11-c0-r0", 1)
    assert [lineage.cycles(run, generation) for generation in (1, 2, 11)] == [2, 0, 1]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"attempts": [{"attempt": "a", "sta',
        "[]",
        "{}",
        '{"attempts": {"a": 0}}',
        '{"attempts": [{"attempt": "a"}]}',
        '{"attempts": [{"attempt": 7, "start": 0}]}',
        '{"attempts": [{"attempt": "a", "start": "0"}]}',
        '{"attempts": [{"attempt": "a", "start": true}]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_list_is_an_error_and_is_not_written_over(run: RunDirectory, content: str | bytes) -> None:
    """As an empty one it would make a stranger of every committed step, for ever."""
    path = run.attempts / "lineage.json"
    path.parent.mkdir()
    damaged = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(damaged)
    for use in (
        lambda: lineage.read(run),
        lambda: lineage.begin(run, "b", 1),
        lambda: lineage.started(run, "a", 5),
        lambda: lineage.require_current(run, "a"),
        lambda: lineage.cycles(run, 1),
    ):
        with pytest.raises(
            OSError, match=r"lineage\.json: .* cannot be read: it is no list of .* restore the file from"
        ):
            use()
    assert path.read_bytes() == damaged


def test_storage_that_does_not_answer_is_an_error_and_not_an_empty_list(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage.begin(run, "a", 1)

    def refused(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        with pytest.raises(
            OSError, match=r"lineage\.json: .* cannot be read: Input/output error\. Nothing is restored"
        ):
            lineage.read(run)
    assert lineage.read(run) == [Begun("a", None)]


@pytest.mark.parametrize(
    "saved",
    [
        [],
        [(5, "g1-c0-r0"), (10, "g1-c0-r0"), (15, "g1-c2-r0")],
        [(15, "g1-c0-r0"), (5, "g1-c0-r0"), (10, "g4-c0-r0"), (20, "g1-c0-r0"), (12, "g2-c0-r0")],
    ],
)
def test_every_adopted_step_lies_in_the_history_and_goes_on_lying_there(
    run: RunDirectory, saved: list[tuple[int, str]]
) -> None:
    """Names of adopted attempts are given again here, and are newer than the first one of this run directory."""
    newest = max((step for step, _ in saved), default=0)
    lineage.begin(run, "g1-c0-r0", 1, lineage.adopted(saved))
    lineage.begin(run, "g1-c0-r0", 1)
    assert all(in_history(lineage.read(run), attempt, step) for step, attempt in saved)
    lineage.started(run, "g1-c0-r0", newest)
    begun = lineage.read(run)
    assert all(in_history(begun, attempt, step) for step, attempt in [*saved, (newest + 5, "g1-c0-r0")])
    assert not in_history(begun, "g3-c0-r0", 5)
    lineage.begin(run, "g1-c1-r0", 1)
    lineage.started(run, "g1-c1-r0", newest)
    assert all(in_history(lineage.read(run), attempt, step) for step, attempt in saved)
    assert not in_history(lineage.read(run), "g1-c0-r0", newest + 5)


def test_a_list_knows_nothing_until_an_attempt_has_gone_on_from_a_step() -> None:
    assert lineage.knows_nothing([])
    assert lineage.knows_nothing([Begun("a", None), Begun("b", None)])
    assert not lineage.knows_nothing([Begun("a", 0), Begun("b", None)])


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
