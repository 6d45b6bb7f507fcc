"""What `make chaos` keeps: it goes on where it stopped, counts what is of one code only, and does not flatter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.plan import VICTIMS, Plan
from bench.chaos.records import CODE, Finished, Kill, WorkFile, code_sha256, folded, good, keep


def _kill(seed: int, **fields: Any) -> Kill:
    return Kill(
        **{"victim": "all", "aim": "phase", "phase": "write", "step": 3, "resumed_at": 3, "ok": True, **fields},
        seed=seed,
    )


def _run(number: int, identical: bool | None = True) -> Finished:
    return Finished(number, [number], identical, looks=10, seconds=2.5)


def test_a_second_invocation_does_the_seeds_that_are_missing(tmp_path: Path) -> None:
    first = WorkFile(tmp_path / "kills.jsonl", "code")
    for seed in (0, 2):
        first.add(_kill(seed))
    first.add(_run(1))
    again = WorkFile(tmp_path / "kills.jsonl", "code")
    assert again.missing(range(4)) == [1, 3]
    assert again.kills == first.kills and again.runs == first.runs


def test_a_torn_line_is_done_again_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "kills.jsonl"
    WorkFile(path, "code").add(_kill(0))
    with open(path, "ab") as file:
        file.write(b'{"seed": 1, "victim"')
    WorkFile(path, "code").add(_kill(1))
    assert WorkFile(path, "code").missing(range(3)) == [2]


def test_kills_of_other_code_are_set_aside_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "kills.jsonl"
    WorkFile(path, "old").add(_kill(0))
    assert WorkFile(path, "new").missing(range(1)) == [0]
    assert "seed" in (tmp_path / "kills.old.jsonl").read_text()


def _tree(root: Path) -> None:
    for place in CODE:
        path = root / place / "stage.py" if not place.endswith(".py") else root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {place}\n")


@pytest.mark.parametrize("changed", ["trainer/checkpoint/stage.py", "trainer/checkpoint/local/tier.py", *CODE[1:]])
def test_the_hash_is_that_of_all_checkpoint_code(tmp_path: Path, changed: str) -> None:
    _tree(tmp_path)
    before = code_sha256(tmp_path)
    (tmp_path / "trainer" / "model.py").write_text("# not it\n")
    (tmp_path / "trainer" / "checkpoint" / "__pycache__").mkdir()
    (tmp_path / "trainer" / "checkpoint" / "__pycache__" / "stage.pyc").write_text("")
    assert code_sha256(tmp_path) == before
    (tmp_path / changed).parent.mkdir(exist_ok=True)
    (tmp_path / changed).write_text("# changed\n")
    assert code_sha256(tmp_path) != before


def test_the_sum_counts_what_the_lines_say(tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "kills.jsonl", "code")
    work.add(_kill(0))
    work.add(_kill(1, victim="rank 0", phase="commit", lost_commits=2, ok=False))
    work.add(_kill(2, resumed_at=None, hang=True, ok=False))
    work.add(_run(1))
    work.add(_run(2, identical=False))
    assert folded(work) == {
        "kills": 3,
        "resumed": 2,
        "lost_commits": 2,
        "wrong_weights": 1,
        "hangs": 1,
        "seeds_not_ok": [1, 2],
        "runs_not_ok": [2],
        "runs": 2,
        "looks": 20,
        "code_sha256": "code",
        "victims": {"all": 2, "rank 0": 1},
        "phases": {"write": 2, "commit": 1},
        "seconds": 5.0,
    }


@pytest.mark.parametrize(
    ("kill", "identical"),
    [
        ({"lost_commits": 1}, True),
        ({"hang": True}, True),
        ({"ok": False}, True),
        ({"resumed_at": None}, True),
        ({}, False),
        ({}, None),
    ],
)
def test_one_broken_promise_makes_the_whole_bad(tmp_path: Path, kill: dict[str, Any], identical: bool | None) -> None:
    fine, broken = WorkFile(tmp_path / "fine", "code"), WorkFile(tmp_path / "broken", "code")
    fine.add(_kill(0))
    fine.add(_run(1))
    broken.add(_kill(0, **kill))
    broken.add(_run(1, identical))
    assert good(folded(fine)) and not good(folded(broken))


def test_a_few_kills_do_not_replace_many_of_the_same_code(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    assert not keep({"kills": 0, "code_sha256": "a"}, {"date": "0"}, path) and not path.exists()
    assert keep({"kills": 200, "code_sha256": "a"}, {"date": "1"}, path)
    assert not keep({"kills": 3, "code_sha256": "a"}, {"date": "2"}, path)
    assert json.loads(path.read_text())["kills"] == 200
    assert keep({"kills": 3, "code_sha256": "b"}, {"date": "3"}, path)
    assert json.loads(path.read_text()) == {"schema": 1, "date": "3", "kills": 3, "code_sha256": "b"}


def test_a_seed_means_the_same_everywhere_and_seeds_differ() -> None:
    plans = [Plan.draw(seed) for seed in range(200)]
    assert plans == [Plan.draw(seed) for seed in range(200)]
    for victim in VICTIMS:
        assert sum(plan.victim == victim for plan in plans) > 20
    assert {plan.aim for plan in plans} == {"save cycle", "start-up", "phase"}
    assert max(plan.fraction for plan in plans) > 0.9 and min(plan.fraction for plan in plans) < 0.1
