"""Output of ranks is kept by generation, cycle and rank, bounded in size and number, and storage that fails harms
nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.run_directory import RunDirectory
from tests.trainer.conftest import configured
from trainer.restart import rank_logs, who
from trainer.restart.rank_logs import RankLogs, append, folder_of, prune
from trainer.runtime import Identity


class Ranks:
    """The output of a pod's ranks, as a launcher lays it out."""

    def __init__(self, folder: Path, *sets: str) -> None:
        self.run = RunDirectory(folder / "run")
        self.scratch = folder / "scratch"
        self.config = configured(*sets)

    def logs(self) -> RankLogs:
        return RankLogs(self.config, self.run, self.scratch, 1, "pod-0")

    def output(self, cycle: int, local_rank: int = 0, stream: str = "stdout") -> Path:
        path = folder_of(self.scratch, 1) / "run-g1_x" / f"attempt_{cycle}" / str(local_rank) / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def says(self, cycle: int, rank: int, local_rank: int = 0) -> None:
        identity = Identity(rank, 4, local_rank, 1, cycle, "pod-0", "node", "")
        who.say({names.ENV_SCRATCH: str(self.scratch)}, identity, self.run.events / "x.jsonl")

    def kept(self, name: str) -> str:
        path = self.run.path / names.LOGS / name
        return path.read_text() if path.exists() else ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "SWEEP_S", 0.02)


def until_kept(ranks: Ranks, name: str, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in ranks.kept(name):
        assert time.monotonic() < deadline, ranks.kept(name)
        time.sleep(0.01)


def test_each_line_of_both_streams_is_kept_under_its_rank_while_the_rank_runs(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    with ranks.logs():
        ranks.says(0, rank=2, local_rank=0)
        with open(ranks.output(0), "w") as out, open(ranks.output(0, stream="stderr"), "w") as err:
            print("first", file=out, flush=True)
            print("Traceback", file=err, flush=True)
            until_kept(ranks, "g1-c0/rank2.log", "first")
            until_kept(ranks, "g1-c0/rank2.log", "Traceback")
            print("second", end="", file=out, flush=True)
        ranks.says(1, rank=3, local_rank=0)
        ranks.output(1).write_text("the next cycle\n")
        until_kept(ranks, "g1-c1/rank3.log", "the next cycle")
    assert sorted(ranks.kept("g1-c0/rank2.log").splitlines()) == ["Traceback", "first", "second"], "the last half line"


def test_a_process_that_never_said_who_it_is_leaves_its_output_under_its_pod(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.says(0, rank=1)
    ranks.output(1, stream="stderr").write_text("ImportError\n")
    with ranks.logs():
        pass
    assert ranks.kept("g1-c1/pod-0.local0.log") == "ImportError\n"
    assert not (ranks.run.path / names.LOGS / "g1-c0").exists()


def test_of_a_rank_that_prints_without_end_the_last_part_is_kept_within_its_limit(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "recovery.log_kib_per_rank=64")
    ranks.says(0, rank=0)
    lines = [f"line {number:06d}" for number in range(20_000)]
    with ranks.logs():
        ranks.output(0).write_text("\n".join(lines) + "\n")
    text = ranks.kept("g1-c0/rank0.1.log") + ranks.kept("g1-c0/rank0.log")
    assert len(text) <= 64 * 1024 and text.endswith(lines[-1] + "\n")
    assert len(ranks.kept("g1-c0/rank0.log")) > 0 and lines[-1500] in text


def test_scratch_space_of_what_was_copied_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "FREE_BYTES", 1 << 16)
    ranks = Ranks(tmp_path)
    ranks.says(0, rank=0)
    output = ranks.output(0)
    output.write_bytes(b"x" * 79 + b"\n" + (b"y" * 79 + b"\n") * 20_000)
    os.sync()
    before = output.stat()
    with ranks.logs():
        pass
    after = output.stat()
    assert after.st_size == before.st_size, "the process that writes goes on at its place"
    if before.st_blocks * 512 >= before.st_size:  # where the file system counts blocks
        assert after.st_blocks < before.st_blocks / 2
    assert output.read_bytes()[-(1 << 16) :].count(b"y") > 60_000, "what the console may not have read yet"


def test_logs_of_old_cycles_are_deleted_and_what_is_no_log_is_not(tmp_path: Path) -> None:
    for name in ("g1-c2", "g1-c10", "g2-c0", "g1-c0", "g1-c9", "notes", "g1-cx"):
        (tmp_path / name).mkdir()
    prune(tmp_path, keep_last=2, keep="g1-c0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g1-c0", "g1-c10", "g1-cx", "g2-c0", "notes"]
    ranks = Ranks(tmp_path / "run", "recovery.log_cycles=2")
    with ranks.logs():
        for cycle in range(4):
            ranks.says(cycle, rank=0)
            ranks.output(cycle).write_text("x\n")
            until_kept(ranks, f"g1-c{cycle}/rank0.log", "x")
    assert sorted(path.name for path in (ranks.run.path / names.LOGS).iterdir()) == ["g1-c2", "g1-c3"]
    assert len(list(folder_of(ranks.scratch, 1).glob("*/attempt_*"))) == 2


def test_storage_that_takes_nothing_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(tmp_path)
    (ranks.run.path).mkdir()
    (ranks.run.path / names.LOGS).touch()
    ranks.says(0, rank=0)
    ranks.output(0).write_text("x\n")
    with ranks.logs():
        pass
    assert "was not kept" in caplog.text


def test_a_line_larger_than_the_log_is_cut_to_it(tmp_path: Path) -> None:
    append(tmp_path / "rank0.log", b"a" * 50, 100)
    append(tmp_path / "rank0.log", b"b" * 500, 100)
    assert (tmp_path / "rank0.log").read_bytes() == b"b" * 100
    assert (tmp_path / "rank0.1.log").read_bytes() == b"a" * 50
