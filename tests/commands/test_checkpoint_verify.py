"""`holdfast checkpoint verify` finds every damage, names its place, and reads what it says it reads."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint_folder import Marker
from holdfast.cli import main
from holdfast.commands import checkpoint_verify
from holdfast.commands.checkpoint_ls import saves_of
from holdfast.commands.checkpoint_verify import verify
from holdfast.config import names
from holdfast.leases import Lease
from tests.commands.saved_steps import BLOCK, Said, commit, content, flip, holdfast, marker_of


def test_verify_reads_every_byte_of_every_committed_step(tmp_path: Path) -> None:
    commit(tmp_path, 20)
    commit(tmp_path, 30)
    done = holdfast("verify", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = done.stdout.splitlines()
    assert first == "step 20: whole, 4 files, 22.8 kB"
    assert second == "step 30: whole, 4 files, 22.8 kB"
    assert last.startswith("45.6 kB read in ") and last.endswith(" GB/s")


@pytest.mark.parametrize("at", [0, 999, 1000, 5_432, 10_499])
def test_verify_finds_one_flipped_bit_anywhere_and_names_its_block(tmp_path: Path, at: int) -> None:
    folder = commit(tmp_path, 30)
    flip(folder / "__1_0.distcp", at)
    verdict = verify(folder.parent, marker_of(folder), every=1)
    where = f"block {at // BLOCK} (from byte {at // BLOCK * BLOCK})"
    assert verdict.problems == [f"step-00000030/__1_0.distcp: {where} has another checksum than was committed"]


@pytest.mark.parametrize("name", [".metadata", "state.json", "__0_0.distcp"])
@pytest.mark.parametrize("harm", ["cut", "emptied", "longer", "gone", "another file's content", "a folder"])
def test_verify_finds_whatever_happened_to_a_file(tmp_path: Path, name: str, harm: str) -> None:
    folder = commit(tmp_path, 30)
    path = folder / name
    match harm:
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "emptied":
            os.truncate(path, 0)
        case "longer":
            path.write_bytes(path.read_bytes() + b"\0")
        case "gone":
            path.unlink()
        case "another file's content":
            path.write_bytes(content(99, path.stat().st_size))
        case "a folder":
            path.unlink()
            path.mkdir()
    verdict = verify(folder.parent, marker_of(folder), every=1)
    assert verdict.problems and all(f"step-00000030/{name}: " in problem for problem in verdict.problems)


def test_verify_reports_every_problem_of_every_step_and_ends_with_1(tmp_path: Path, capsys: Said) -> None:
    flip(commit(tmp_path, 20) / "__0_0.distcp", 2500)
    folder = commit(tmp_path, 30)
    flip(folder / "__0_0.distcp", 2500)
    flip(folder / "__0_0.distcp", 7500)
    (folder / "state.json").unlink()
    commit(tmp_path, 40)
    assert main(["checkpoint", "verify", str(tmp_path)]) == checkpoint_verify.EXIT_DAMAGED
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r" \(| has ", line)[0] for line in lines[:-1]] == [
        "step-00000020/__0_0.distcp: block 2",
        "step 20: DAMAGED, 1 problem",
        "step-00000030/__0_0.distcp: block 2",
        "step-00000030/__0_0.distcp: block 7",
        "step-00000030/state.json: No such file or directory",
        "step 30: DAMAGED, 3 problems",
        "step 40: whole, 4 files, 22.8 kB",
    ]


def test_verify_of_one_step_reads_no_other(tmp_path: Path, capsys: Said) -> None:
    flip(commit(tmp_path, 20) / "__0_0.distcp", 0)
    commit(tmp_path, 30)
    assert main(["checkpoint", "verify", str(tmp_path), "--step", "30"]) == 0
    assert "step 20" not in capsys.readouterr().out


def test_sampled_reads_each_sixteenth_block_and_the_last(tmp_path: Path, capsys: Said) -> None:
    folder = commit(tmp_path, 30, world_size=1, size=40_500)
    verdict = verify(folder.parent, marker_of(folder), every=16)
    assert verdict.bytes == 3 * 1000 + 500 + 1500 + 300, "blocks 0, 16, 32 and 40, and both descriptions"
    flip(folder / "__0_0.distcp", 40_499)
    assert main(["checkpoint", "verify", str(tmp_path), "--sampled"]) == checkpoint_verify.EXIT_DAMAGED
    flip(folder / "__0_0.distcp", 40_499)
    capsys.readouterr()
    assert main(["checkpoint", "verify", str(tmp_path), "--sampled"]) == 0
    assert "5.3 kB of 42.3 kB verified" in capsys.readouterr().out


def test_a_large_file_is_shared_out_among_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = commit(tmp_path, 30, world_size=1, size=200_000)
    pieces = list(checkpoint_verify._pieces(list(marker_of(folder).files), every=1))
    blocks = [block for piece in pieces for block in piece.blocks if piece.file.name == "__0_0.distcp"]
    assert blocks == list(range(200))
    assert max(len(piece.blocks) for piece in pieces) == checkpoint_verify.PIECE_BLOCKS


def test_verify_holds_a_lease_while_it_reads_and_none_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    commit(tmp_path, 30)
    seen: list[tuple[str, ...]] = []

    def look_meanwhile(checkpoints: Path, marker: Marker, every: int) -> checkpoint_verify.Verdict:
        seen.extend(save.leased_by for save in saves_of(tmp_path))
        return verify(checkpoints, marker, every)

    monkeypatch.setattr(checkpoint_verify, "verify", look_meanwhile)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert [who[0].partition(" (")[0] for who in seen] == ["checkpoint verify"]
    assert [save.leased_by for save in saves_of(tmp_path)] == [()]


def test_a_step_that_is_deleted_before_its_lease_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    gone = commit(tmp_path, 20)
    commit(tmp_path, 30)

    class Late(Lease):
        def __enter__(self) -> Lease:
            shutil.rmtree(gone, ignore_errors=True)
            return super().__enter__()

    monkeypatch.setattr(checkpoint_verify, "Lease", Late)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert "step 20: training deleted it" in capsys.readouterr().out


def test_a_step_whose_marker_cannot_be_read_is_damaged_whatever_else_is_there(tmp_path: Path, capsys: Said) -> None:
    torn = commit(tmp_path, 20) / names.COMMITTED
    torn.write_text(torn.read_text()[:50])
    for arguments in ([], ["--step", "20"]):
        assert main(["checkpoint", "verify", str(tmp_path), *arguments]) == checkpoint_verify.EXIT_DAMAGED
        said = capsys.readouterr().out
        assert f"{torn}: it is no marker that can be read" in said and "step 20: DAMAGED, 1 problem" in said
    commit(tmp_path, 30)
    assert main(["checkpoint", "verify", str(tmp_path)]) == checkpoint_verify.EXIT_DAMAGED
    said = capsys.readouterr().out
    assert "step 20: DAMAGED" in said and "step 30: whole" in said
    assert main(["checkpoint", "verify", str(tmp_path), "--step", "30"]) == 0
