"""Fuzz: files that are truncated, flipped, emptied, renamed, swapped are found by verify and never loaded."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint_folder import damage, read_marker
from tests.trainer.committed import blank, flip, load, marker_of, some_tensors, two_steps
from tests.trainer.saves import same
from trainer.checkpoint import compare, reader
from trainer.checkpoint.reader import Damaged

BLOCK = 4096
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # so it is: one process loads


@pytest.fixture(autouse=True)
def many_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that runs meet within blocks, as they do in files of many GB."""
    monkeypatch.setattr(reader, "RUN_BYTES", 5 * BLOCK)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_steps(tmp_path_factory.mktemp("checkpoints"), BLOCK)


def _truncated(folder: Path, path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(1, path.stat().st_size))


def _flipped(folder: Path, path: Path, chance: random.Random) -> None:
    flip(path, chance.randrange(path.stat().st_size))


def _emptied(folder: Path, path: Path, chance: random.Random) -> None:
    os.truncate(path, 0)


def _grown(folder: Path, path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + bytes(chance.randrange(1, 10)))


def _renamed(folder: Path, path: Path, chance: random.Random) -> None:
    path.rename(folder / f"{path.name}.{chance.randrange(100)}")


def _swapped(folder: Path, path: Path, chance: random.Random) -> None:
    other = chance.choice(sorted(file for file in folder.iterdir() if file.name not in (path.name, "COMMITTED.json")))
    path.rename(folder / "aside")
    other.rename(path)
    (folder / "aside").rename(other)


def _of_another_step(folder: Path, path: Path, chance: random.Random) -> None:
    shutil.copy(folder.parent / "step-00000010" / path.name, path)


WAYS = [_truncated, _flipped, _emptied, _grown, _renamed, _swapped, _of_another_step]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_file_is_found_by_verify_and_by_the_reader_and_never_loaded(
    saved: Path, tmp_path: Path, way: Callable[[Path, Path, random.Random], None]
) -> None:
    """20 seeds each: any file of the folder, in any place."""
    for seed in range(20):
        folder = Path(shutil.copytree(saved, tmp_path / str(seed))) / "step-00000020"
        marker, chance = marker_of(folder), random.Random(seed)
        path = folder / chance.choice([file.name for file in marker.files])
        way(folder, path, chance)
        assert list(damage(folder, marker.files, marker.block_bytes)), (
            f"{way.__name__} {seed}: not found in {path.name}"
        )
        with pytest.raises(Damaged, match="step-00000020/"):
            load(folder, blank(some_tensors(20)))


def test_a_damaged_marker_makes_the_step_uncommitted_or_damaged_or_changes_no_value(
    saved: Path, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        folder = Path(shutil.copytree(saved, tmp_path / str(seed))) / "step-00000020"
        (_truncated if seed % 4 == 0 else _flipped)(folder, folder / "COMMITTED.json", random.Random(seed))
        if read_marker(folder) is None:
            outcomes["uncommitted"] += 1
            continue
        into = blank(some_tensors(20))
        try:
            load(folder, into)
        except Damaged:
            outcomes["damaged"] += 1
            continue
        assert same(into, some_tensors(20))
    assert outcomes["uncommitted"] >= 15 and outcomes["damaged"] >= 20


@pytest.mark.parametrize(
    ("place", "code", "says"),
    [(None, 0, ""), (5 * BLOCK, 2, "step-00000020/__0_0.distcp: block 5 (from byte 20480) has another checksum")],
)
def test_compare_verifies_first_and_cannot_tell_what_is_damaged(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: int | None,
    code: int,
    says: str,
) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    for run_dir in (first, second):
        shutil.copytree(saved, run_dir / "checkpoints")
    if place is not None:
        flip(second / "checkpoints/step-00000020/__0_0.distcp", place)
    monkeypatch.setattr("sys.argv", ["compare", str(first), str(second)])
    assert compare.main() == code
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("*/checkpoints/leases/*"))
