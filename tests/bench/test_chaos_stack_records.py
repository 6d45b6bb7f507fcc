"""What the campaign `stack` keeps: it goes on where it stopped, counts one code only, and does not flatter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.stack.records import CODE, LINES, Line, WorkFile, begun_elsewhere, code_sha256, folded, good, keep


def _line(seed: int, **fields: Any) -> Line:
    usual: dict[str, Any] = {
        "topology": "2x1 job",
        "drawn": ["hang-rank0-step3"],
        "kinds": ["hang"],
        "expected": "bit_equal",
        "end": "complete",
        "identical": True,
        "seconds": 10.0,
        "restarts": 1,
        "unattributed": 0.001,
    }
    return Line(**{**usual, **fields}, seed=seed)


def test_a_second_invocation_does_the_seeds_that_are_missing(tmp_path: Path) -> None:
    first = WorkFile(tmp_path / "schedules.jsonl", "code")
    for seed in (0, 2):
        first.add(_line(seed))
    again = WorkFile(tmp_path / "schedules.jsonl", "code")
    assert again.missing(range(4)) == [1, 3] and again.lines == first.lines


def test_a_torn_line_is_done_again_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "schedules.jsonl"
    WorkFile(path, "code").add(_line(0))
    with open(path, "ab") as file:
        file.write(b'{"seed": 1, "topology"')
    WorkFile(path, "code").add(_line(1))
    assert WorkFile(path, "code").missing(range(3)) == [2]


def test_schedules_of_other_code_are_set_aside_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "schedules.jsonl"
    WorkFile(path, "old").add(_line(0))
    assert WorkFile(path, "new").missing(range(1)) == [0]
    assert '"seed": 0' in (tmp_path / "schedules.old.jsonl").read_text()


@pytest.mark.parametrize(
    "changed",
    [
        "trainer/restart/launcher.py",
        "k8s/job.py",
        "holdfast/launch.py",
        "holdfast/local/runner.py",
        "holdfast/config/profiles/cpu-test.yaml",
        "holdfast/goodput/ledger.py",
        "holdfast/commands/run_faults.py",
        "holdfast/config/fault_catalogue.yaml",
        "bench/chaos/stack/judge.py",
        "requirements.txt",
    ],
)
def test_the_hash_is_that_of_all_that_runs_and_judges(tmp_path: Path, changed: str) -> None:
    for place in CODE:
        path = tmp_path / place if "." in place else tmp_path / place / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# as it was\n")
    before = code_sha256(tmp_path)
    untested = ("holdfast/report/page.py", "holdfast/goodput/planner/money.py", "holdfast/commands/plan_table.py")
    for without in (*untested, "holdfast/config/profiles/llama3-8b-p5x2.yaml", "trainer/__pycache__/train.pyc"):
        (tmp_path / without).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / without).write_text("# no job runs this\n")
    assert code_sha256(tmp_path) == before
    (tmp_path / changed).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / changed).write_text("# changed\n")
    assert code_sha256(tmp_path) != before


def test_the_sum_counts_faults_that_struck_and_seeds_that_kept_every_promise(tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "schedules.jsonl", "code")
    work.add(_line(0, kinds=["hang", "exception"]))
    work.add(_line(1, expected="terminal", end="terminal 93", identical=None, kinds=["nan_loss"], restarts=0))
    work.add(_line(2, identical=False, seconds=30.5, unattributed=0.4, why=["final weights differ"]))
    assert folded(work) == {
        "schedules": 3,
        "complete": 2,
        "failed": [2],
        "kinds": {"exception": 1, "hang": 2, "nan_loss": 1},
        "ends": {"complete": 2, "terminal 93": 1},
        "compared": 2,
        "wrong_weights": 1,
        "restarts": 2,
        "seconds": 50.5,
        "longest_s": 30.5,
        "most_unattributed": 0.4,
        "code_sha256": "code",
    }
    assert not good(folded(work))


def test_all_promises_kept_is_good(tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "schedules.jsonl", "code")
    work.add(_line(0))
    assert good(folded(work))


def test_a_few_schedules_do_not_replace_many_of_the_same_code(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "chaos.json"

    def done(count: int, code: str) -> WorkFile:
        work = WorkFile(tmp_path / f"{code}{count}.jsonl", code)
        for seed in range(count):
            work.add(_line(seed))
        return work

    assert not keep(done(0, "a"), {"date": "0"}, path) and not path.exists()
    assert keep(done(5, "a"), {"date": "1"}, path)
    assert not keep(done(3, "a"), {"date": "2"}, path)
    assert json.loads(path.read_text())["schedules"] == 5
    assert len(WorkFile(path.with_name(LINES), "a").lines) == 5
    assert keep(done(3, "b"), {"date": "3"}, path)
    assert json.loads(path.read_text())["schedules"] == 3
    assert len(WorkFile(path.with_name(LINES), "b").lines) == 3


def test_another_copy_of_the_repository_goes_on_with_the_lines_that_are_kept(tmp_path: Path) -> None:
    there, result = tmp_path / "there.jsonl", tmp_path / "chaos.json"
    work = WorkFile(there, "code")
    work.add(_line(0))
    assert keep(work, {}, result)
    begun_elsewhere(tmp_path / "new" / "schedules.jsonl", "code", result)
    assert WorkFile(tmp_path / "new" / "schedules.jsonl", "code").missing(range(2)) == [1]
    begun_elsewhere(tmp_path / "other.jsonl", "other code", result)
    assert not (tmp_path / "other.jsonl").exists()
    WorkFile(tmp_path / "begun.jsonl", "code").add(_line(7))
    begun_elsewhere(tmp_path / "begun.jsonl", "code", result)
    assert WorkFile(tmp_path / "begun.jsonl", "code").missing(range(2)) == [0, 1], "what was begun here stays"
