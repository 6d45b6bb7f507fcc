"""Which failure is the newest, in the order of attempts, and where its output is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.last_failure import how_ended, newest_failure
from holdfast.run_directory import RunDirectory, write_atomically


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def failed(run: RunDirectory, name: str, **record: object) -> None:
    write_atomically(run.attempts / name, json.dumps(record))


def test_the_newest_is_the_last_by_attempt_and_consequences_do_not_count(run: RunDirectory) -> None:
    assert newest_failure(run) is None
    failed(run, "g1-c9-r0.rank0.json", rank=0, step=3, fingerprint="KeyError at a.py:f", message="old")
    failed(run, "g1-c10-r1.rank2.json", rank=2, step=5, fingerprint="ValueError at b.py:g", message="two\n lines")
    failed(run, "g1-c11-r0.rank1.json", rank=1, step=6, fingerprint="RuntimeError", message="", consequence=True)
    failure = newest_failure(run)
    assert str(failure) == "rank 2 at step 5 of g1-c10: ValueError at b.py:g: two lines"
    assert failure is not None and failure.log is None
    log = run.path / names.LOGS / "g2-c0" / "rank3.log"
    write_atomically(log, "x")
    failed(run, "g2-c0.death3.json", cycle="g2-c0", rank=3, step=None, code=-9, hang="")
    failure = newest_failure(run)
    assert failure is not None and failure.log == log
    assert str(failure) == "rank 3 before its first step of g2-c0: ended by SIGKILL"


def test_what_is_no_record_is_passed_over(run: RunDirectory) -> None:
    failed(run, "g1-c0-r0.rank0.json", rank=0, step=3, fingerprint="KeyError", message="x")
    write_atomically(run.attempts / "g3-c0-r0.rank0.json", "{")
    write_atomically(run.attempts / "notes.rank0.json", "{}")
    assert str(newest_failure(run)).startswith("rank 0 at step 3 of g1-c0")


@pytest.mark.parametrize("record", [{"rank": None, "code": -9}, {"rank": "x", "code": -9, "hang": None}])
def test_the_name_of_a_record_says_whose_it_is(run: RunDirectory, record: dict[str, object]) -> None:
    failed(run, "g1-c0.death1.json", **record)
    assert str(newest_failure(run)) == "rank 1 before its first step of g1-c0: ended by SIGKILL"


@pytest.mark.parametrize("code", [None, "x", [9]])
def test_a_death_with_a_code_that_is_none_is_a_failure_still(run: RunDirectory, code: object) -> None:
    failed(run, "g1-c0.death1.json", rank=1, step=4, code=code)
    assert str(newest_failure(run)) == "rank 1 at step 4 of g1-c0: ended with exit code 1"


def test_ends_have_names() -> None:
    assert [how_ended(code) for code in (-11, -250, 7)] == [
        "ended by SIGSEGV",
        "ended by signal 250",
        "ended with exit code 7",
    ]
