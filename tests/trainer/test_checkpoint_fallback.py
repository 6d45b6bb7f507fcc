"""Fallback: a damaged, foreign or abandoned newest checkpoint is said to be so, and the previous one is loaded in full.

Checkpoints made by hand, restored by the real start of an attempt on two ranks; all cases of a test in one launch.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import lineage
from holdfast.checkpoint_folder import read_marker
from holdfast.config.names import step_folder
from holdfast.goodput.events import EventLog
from holdfast.lineage import Begun
from holdfast.run_directory import RunDirectory
from tests.trainer.committed import Evil, write_marker
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import config
from tests.trainer.sharded_steps import BLOCK, FIRST, live_tensors, save_another_model, save_steps
from trainer.runtime import Attempt

SECOND, THIRD = Attempt(1, 1, 0), Attempt(1, 2, 0)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose attempt FIRST has committed steps 5, 10 and 15."""
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.take(nodes=2, job="job", jobset_attempt=0, pod="pod", lease_s=0.1)
    lineage.begin(run, str(FIRST), 1)
    lineage.started(run, str(FIRST), 0)
    run_ranks(save_steps, 2, str(run.path), timeout_s=110)
    return run.path


def _restore(rank: int, world: int, cases: list[str], second_sees: str) -> list[Any]:
    """What each run directory restores to, as attempt THIRD: (step, the one value of all tensors, skipped, held)."""
    from holdfast.leases import held_steps
    from trainer.checkpoint import restore
    from trainer.checkpoint.resume import Resume
    from trainer.checkpoint.stage import local_part

    held: set[int] = set()
    load, read = restore.load, read_marker

    def watched(*args: Any) -> list[str]:
        held.update(held_steps(run.checkpoints, {}))
        return load(*args)

    vars(restore)["load"] = watched
    if rank == 1 and second_sees == "nothing":

        def refused(folder: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        vars(restore)["look"] = refused
    elif rank == 1 and second_sees:
        vars(restore)["read_marker"] = lambda folder: (
            replace(marker, attempt="another") if (marker := read(folder)) and folder.name == second_sees else marker
        )
    live, results = live_tensors(world), list[Any]()
    for case in cases:
        held.clear()
        run = RunDirectory(Path(case))
        log = EventLog(run.events, "rank", rank=rank)
        for tensor in live.values():
            local_part(tensor).fill_(float("nan"))
        try:
            step = Resume(config(), run, THIRD, rank, log, "data").into(live)
        except (restore.NoCheckpoint, RuntimeError, OSError) as error:
            results.append(f"{type(error).__name__}: {error}")
            continue
        values = sorted({value for tensor in live.values() for value in local_part(tensor).flatten().tolist()})
        events = [json.loads(line) for line in log.path.read_text().splitlines()]
        skipped = [f"{event['folder']}: {event['why']}" for event in events if event["name"] == "skipped"]
        results.append((step, values, skipped, sorted(held)))
    return results


def restored(*cases: Path, second_sees: str = "") -> list[list[Any]]:
    """Run `_restore`: results by case, then by rank."""
    by_rank = run_ranks(_restore, 2, [str(case) for case in cases], second_sees, timeout_s=110)
    return [list(results) for results in zip(*by_rank, strict=True)]


def _copy(clean: Path, to: Path) -> Path:
    return Path(shutil.copytree(clean, to))


def _flipped(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _truncated(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _renamed(path: Path, chance: random.Random) -> None:
    path.rename(path.with_name(f"{path.name}-"))


def _of_another_step(path: Path, chance: random.Random) -> None:
    shutil.copy(path.parents[1] / "step-00000010" / path.name, path)


def _swapped(path: Path, chance: random.Random) -> None:
    other = chance.choice(
        sorted(file for file in path.parent.iterdir() if file.name not in (path.name, "COMMITTED.json"))
    )
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _evil(path: Path, chance: random.Random) -> None:
    """Of any file: torch would unpickle `.metadata`."""
    path.with_name(".metadata").write_bytes(pickle.dumps(Evil(path.parents[2] / "canary")))


def test_damage_of_any_kind_makes_all_ranks_load_the_previous_step_in_full(clean: Path, tmp_path: Path) -> None:
    """Eighteen cases; in the last six the previous step is damaged too."""
    ways: list[Callable[[Path, random.Random], None]] = [
        _flipped,
        _truncated,
        _renamed,
        _of_another_step,
        _swapped,
        _evil,
    ]
    cases, chance = [], random.Random(4)
    for number in range(18):
        case = _copy(clean, tmp_path / str(number))
        for step in (15,) if number < 12 else (15, 10):
            folder = case / "checkpoints" / step_folder(step)
            marker = read_marker(folder)
            assert marker is not None
            way = ways[number % 6] if step == 15 else _flipped
            way(folder / chance.choice([file.name for file in marker.files]), chance)
        cases.append(case)
    for number, results in enumerate(restored(*cases)):
        expected = 10 if number < 12 else 5
        (step, values, skipped, held), second = results
        assert (step, values) == (expected, [float(expected)]) == second[:2], f"case {number}"
        assert all(message.startswith(("step-00000015", "step-00000010")) for message in skipped)
        assert {message[:13] for message in skipped} == {f"step-{step:08d}" for step in (10, 15) if step > expected}
        assert expected in held
        assert {path.name for path in cases[number].glob("aside/*/*")} == {message[:13] for message in skipped}
        assert lineage.read(RunDirectory(cases[number])) == [Begun(str(FIRST), 0), Begun(str(THIRD), expected)]
        assert not (cases[number] / "canary").exists()
        assert not list(cases[number].glob("checkpoints/leases/*"))


def test_what_an_aborted_attempt_committed_late_or_another_run_made_is_not_loaded(clean: Path, tmp_path: Path) -> None:
    late, foreign, only_foreign = (_copy(clean, tmp_path / name) for name in ("late", "foreign", "only"))
    run = RunDirectory(late)
    lineage.begin(run, str(SECOND), 1)
    lineage.started(run, str(SECOND), 10)  # it did not see step 15 yet
    for case in (foreign, only_foreign):
        write_marker(case / "checkpoints" / step_folder(15), BLOCK, "g7-c0-r0", 2)
    for step in (5, 10):
        shutil.rmtree(only_foreign / "checkpoints" / step_folder(step))
    of_late, of_foreign, of_only = restored(late, foreign, only_foreign)
    for (step, values, skipped, _), who in ((of_late[0], "g1-c0-r0"), (of_foreign[0], "g7-c0-r0")):
        assert (step, values) == (10, [10.0])
        assert skipped == [
            f"step-00000015: attempt {who} committed it, which is not in this run's history or was aborted before"
        ]
    assert "1 committed checkpoint(s), none of which can be used" in of_only[0] and of_only[0] == of_only[1]


def _cut_markers(case: Path, *steps: int) -> None:
    for step in steps:
        os.truncate(case / "checkpoints" / step_folder(step) / "COMMITTED.json", 20)


def test_a_step_whose_marker_is_unreadable_is_set_aside_and_never_taken_for_no_step_at_all(
    clean: Path, tmp_path: Path
) -> None:
    one, oldest, all_of_them = (_copy(clean, tmp_path / name) for name in ("one", "oldest", "all"))
    _cut_markers(one, 15)
    _cut_markers(oldest, 5)
    _cut_markers(all_of_them, 5, 10, 15)
    of_one, of_oldest, of_all = restored(one, oldest, all_of_them)
    assert of_one[0][:3] == (10, [10.0], ["step-00000015: its marker is unreadable"])
    assert of_one[1][:2] == (10, [10.0])
    assert (one / "aside" / str(THIRD) / "step-00000015" / "state.json").exists()
    assert of_oldest[0][:3] == (15, [15.0], []) and (oldest / "checkpoints/step-00000005/state.json").exists()
    assert of_all[0] == of_all[1]
    assert of_all[0].startswith("NoCheckpoint: ")
    assert "3 committed checkpoint(s), none of which can be used: step-00000005: its marker is unrea" in of_all[0]
    assert len(list(all_of_them.glob("checkpoints/step-*/*.distcp"))) == len(list(clean.glob("*/step-*/*.distcp")))


def test_a_list_of_attempts_that_cannot_be_read_fails_the_attempt_on_all_ranks_and_the_next_one_goes_on(
    clean: Path, tmp_path: Path
) -> None:
    case = _copy(clean, tmp_path / "run")
    path = case / "attempts/lineage.json"
    kept = path.read_bytes()
    path.write_bytes(b"")
    ((first, second),) = restored(case)
    assert first == second
    assert first.startswith(f"OSError: {path}: the list of the run's attempts cannot be read: ")
    assert path.read_bytes() == b""
    path.write_bytes(kept)
    ((first, second),) = restored(case)
    assert (first[:3], second[:2]) == ((15, [15.0], []), (15, [15.0]))


def test_a_folder_that_one_rank_cannot_list_is_an_error_on_all_ranks(clean: Path, tmp_path: Path) -> None:
    ((first, second),) = restored(_copy(clean, tmp_path / "run"), second_sees="nothing")
    assert first == second == "OSError: rank 1 cannot list the checkpoints: [Errno 5] Input/output error"


def test_steps_without_any_list_of_attempts_are_adopted_and_strangers_to_a_list_are_not(
    clean: Path, tmp_path: Path
) -> None:
    """without: made before there were lists, or only the checkpoints were copied. again: its attempt has the name of
    the one that restores. began: the list is of attempts that ended before they knew anything. foreign: a list knows
    better."""
    without, again, began, foreign = (
        _copy(clean, tmp_path / name) for name in ("without", "again", "began", "foreign")
    )
    for case in (without, again, began):
        (case / "attempts/lineage.json").unlink()
    for step in (5, 10, 15):
        write_marker(again / "checkpoints" / step_folder(step), BLOCK, str(THIRD), 2)
        write_marker(foreign / "checkpoints" / step_folder(step), BLOCK, "g7-c0-r0", 2)
    lineage.begin(RunDirectory(began), str(SECOND), 1)
    *adopted, (of_foreign, _) = restored(without, again, began, foreign)
    for first, second in adopted:
        assert (first[:3], second[:2]) == ((15, [15.0], []), (15, [15.0]))
    assert lineage.read(RunDirectory(without)) == [Begun(str(FIRST), 0, adopted=True), Begun(str(THIRD), 15)]
    assert lineage.read(RunDirectory(again)) == [Begun(str(THIRD), 0, adopted=True), Begun(str(THIRD), 15)]
    assert lineage.read(RunDirectory(began))[1:] == [Begun(str(SECOND), None), Begun(str(THIRD), 15)]
    assert of_foreign.startswith("NoCheckpoint: ") and "attempt g7-c0-r0 committed it" in of_foreign
    assert lineage.read(RunDirectory(foreign)) == [Begun(str(FIRST), 0), Begun(str(THIRD), None)]


def test_a_step_whose_marker_differs_between_ranks_is_not_loaded(clean: Path, tmp_path: Path) -> None:
    ((first, second),) = restored(_copy(clean, tmp_path / "run"), second_sees="step-00000015")
    assert first[:3] == (10, [10.0], ["step-00000015: ranks see different markers"])
    assert second[:2] == (10, [10.0])


def test_a_checkpoint_of_another_model_is_an_error_and_no_damage(clean: Path, tmp_path: Path) -> None:
    """An older step would not fit either, and nothing must be set aside."""
    case = _copy(clean, tmp_path / "run")
    folder = case / "checkpoints" / step_folder(15)
    for path in folder.iterdir():
        path.unlink()
    run_ranks(save_another_model, 2, str(folder), timeout_s=110)
    ((first, second),) = restored(case)
    assert first == second
    assert first.startswith("RuntimeError: the checkpoint cannot be loaded: rank 0: ")
    assert "Missing key" in first
    assert not (case / "aside").exists()
