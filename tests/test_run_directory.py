"""Records of a run directory: one owner, first writer wins, nothing torn."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.run_directory import (
    RunDirectory,
    RunIsOwned,
    StaleGeneration,
    Terminal,
    write_atomically,
    write_once,
)


def take(run: RunDirectory, *, job: str = "job", attempt: int = 0, lease_s: float = 0.4) -> int:
    """Take the run and return the generation."""
    return run.take(nodes=2, job=job, jobset_attempt=attempt, pod="pod", lease_s=lease_s).generation


def _try_to_take(path: str) -> int:
    try:
        return take(RunDirectory(Path(path)), job=f"job-{os.getpid()}")
    except RunIsOwned:
        return 0


def test_generations_count_up_over_the_life_of_the_folder(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first = take(run)
    run.release(first)
    second = take(run)
    assert (first, second) == (1, 2)


def test_a_live_owner_is_named_with_host_and_pid(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    take(run)
    with pytest.raises(RunIsOwned, match=rf"host {os.uname().nodename}, pod pod, pid {os.getpid()}"):
        take(run, job="another")


def test_a_dead_owner_on_the_same_machine_is_replaced_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from holdfast.run_directory import RunDirectory;"
        "RunDirectory(Path(sys.argv[1])).take(nodes=1, job='j', jobset_attempt=0, pod='dead', lease_s=60)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=30)
    assert take(RunDirectory(tmp_path), job="another", lease_s=60) == 2


def test_the_next_attempt_of_the_same_jobset_supersedes_a_live_owner(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    old = take(run)
    assert take(run, attempt=1, lease_s=60) == old + 1
    with pytest.raises(StaleGeneration, match="generation 1 no longer owns"):
        run.require_generation(old)


def test_another_size_is_another_generation_of_the_same_owner(tmp_path: Path) -> None:
    """Everything of the generation before is refused from then on, and resume.step still counts as obeyed."""
    run = RunDirectory(tmp_path)
    before = run.take(nodes=3, job="job", jobset_attempt=0, pod="pod", lease_s=0.4)
    run.ask_to_move_on(1, "a node is missing")
    assert run.asked_to_move_on(1) == "a node is missing" and run.asked_to_move_on(2) is None
    after = run.next_generation(before, 2, 0.4)
    assert run.owner() == after and (after.generation, after.nodes) == (2, 2) and after.token != before.token
    assert after.incarnation == before.incarnation
    with pytest.raises(StaleGeneration, match="generation 1 no longer owns"):
        run.require_generation(1)
    with pytest.raises(StaleGeneration):
        run.next_generation(before, 1, 0.4)
    with pytest.raises(StaleGeneration):
        run.write_terminal(Terminal(93, "late"), 1)


def test_an_owner_that_another_attempt_has_replaced_cannot_change_the_size(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = run.take(nodes=3, job="job", jobset_attempt=0, pod="pod", lease_s=0.4)
    take(run, attempt=1)
    with pytest.raises(StaleGeneration, match="generation 2"):
        run.next_generation(before, 2, 0.4)
    assert run.owner() is not None and run.owner().nodes == 2  # type: ignore[union-attr]


def _foreign_owner(run: RunDirectory) -> None:
    """Make the record look as if another machine had written it."""
    path = run.path / "generation.json"
    write_atomically(path, path.read_text().replace('"boot": "', '"boot": "other-'))


def test_an_owner_elsewhere_counts_as_dead_when_its_lease_runs_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    take(run)
    _foreign_owner(run)
    assert take(run, job="another") == 2


def test_an_owner_elsewhere_that_renews_its_lease_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    generation = take(run)
    _foreign_owner(run)
    code = (
        "import sys, time; from pathlib import Path; from holdfast.run_directory import RunDirectory;"
        "run = RunDirectory(Path(sys.argv[1]));"
        f"[(run.beat({generation}, n), time.sleep(0.1)) for n in range(1, 100)]"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as beating:
        with pytest.raises(RunIsOwned):
            take(run, job="another", lease_s=5)
        beating.kill()


def test_of_eight_claimants_at_once_exactly_one_becomes_the_owner(tmp_path: Path) -> None:
    with get_context("spawn").Pool(8) as pool:
        generations = pool.map(_try_to_take, [str(tmp_path)] * 8, chunksize=1)
    owner = RunDirectory(tmp_path).owner()
    assert owner is not None
    assert [g for g in generations if g] == [owner.generation]


def test_the_first_terminal_record_wins(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.write_terminal(Terminal(93, "first", rank=1, step=5, attempt="g1-c0-r0"))
    assert not run.write_terminal(Terminal(78, "second"))
    assert run.terminal() == Terminal(93, "first", rank=1, step=5, attempt="g1-c0-r0")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"code": "x", "reason": 5}', Terminal(93, "5")),
        ('{"code": 0, "reason": "odd"}', Terminal(93, "odd")),
        ('{"code": null, "reason": "odd", "rank": "r"}', Terminal(93, "odd", rank="r")),  # type: ignore[arg-type]
        ('{"code": [1e999]}', Terminal(93, "None")),
        ('{"code": 78, "reason": "input"}', Terminal(78, "input")),
    ],
)
def test_a_terminal_record_with_odd_content_still_ends_the_run(
    tmp_path: Path, content: str, expected: Terminal
) -> None:
    """Supervisors end with its code: it must be one with which no Job is started again."""
    (tmp_path / names.TERMINAL).write_text(content)
    assert RunDirectory(tmp_path).terminal() == expected


def test_an_older_generation_cannot_write_terminal(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    old = take(run)
    take(run, attempt=1)
    with pytest.raises(StaleGeneration):
        run.write_terminal(Terminal(93, "stale"), generation=old)
    assert run.terminal() is None


def test_a_torn_record_reads_as_absent(tmp_path: Path) -> None:
    for content in ('{"step": 1', "[" * 100_000):
        (tmp_path / "COMPLETE").write_text(content)
        assert RunDirectory(tmp_path).complete() is None


def test_write_once_leaves_no_temporary_file(tmp_path: Path) -> None:
    assert write_once(tmp_path / "a", "1")
    assert not write_once(tmp_path / "a", "2")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "1")]


def test_an_owner_record_that_cannot_be_read_is_neither_nobodys_nor_a_newer_owners(tmp_path: Path) -> None:
    (tmp_path / names.GENERATION).mkdir()  # any read fails, for root too
    run = RunDirectory(tmp_path)
    with pytest.raises(IsADirectoryError):
        run.require_generation(1)
    with pytest.raises(IsADirectoryError):
        run.take(nodes=1, job="job", jobset_attempt=0, pod="pod", lease_s=0.1)
