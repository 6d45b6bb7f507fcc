"""`python -m trainer.data.prepare`: the same folder whatever the processes, whole or not there, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import psutil
import pytest

from holdfast.config import ConfigError
from tests.trainer.prepared_data import ROOT, content, corpus, documents, lines, made, run
from tests.trainer.test_data import small
from trainer.data import open_dataset
from trainer.data.prepare import conduct, inputs, pieces, room
from trainer.data.prepare.failures import WorkFailed
from trainer.data.prepare.inputs import InputFile
from trainer.data.prepare.pieces import Piece
from trainer.data.prepare.records import read
from trainer.data.prepared import MANIFEST, PLAN
from trainer.data.tokenizer import Bytes


def texts(found: list[Piece]) -> list[str]:
    return [record.text for piece in found for record in read(piece, "text")]


# --- reading ---


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_stretches_of_a_file_of_json_lines_hold_every_line_once(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(documents(40)))
    (file,) = inputs.find("a.jsonl", tmp_path).files
    stretches = pieces.cut([file], smallest=size)
    assert len(stretches) == -(-file.size // size)
    assert texts(stretches) == documents(40)


def test_parquet_is_cut_at_row_groups_and_read_whole(tmp_path: Path) -> None:
    found = inputs.find("c.parquet", corpus(tmp_path, 60)).files
    cut = pieces.cut(found, smallest=200)
    assert len(cut) == 4
    assert texts(cut) == documents(60, "c")


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_packed_and_plain_files_give_the_same_text(tmp_path: Path, suffix: str, kind: str) -> None:
    data = lines(documents(300)) if kind == "jsonl" else "\n".join(documents(300)).encode()
    (tmp_path / f"a.{kind}{suffix}").write_bytes(packed(data, suffix))
    found = pieces.cut(inputs.find(".", tmp_path).files)
    assert len(found) == 1
    records = list(read(found[0], "text"))
    if kind == "jsonl":
        assert [record.text for record in records] == documents(300)
    else:
        assert "".join(record.text for record in records) == data.decode()
        assert [record.last for record in records] == [False] * (len(records) - 1) + [True]
    assert records[-1].done == found[0].weight


def packed(data: bytes, suffix: str) -> bytes:
    import bz2
    import gzip

    import pyarrow as pa

    if suffix == ".zst":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return {"": data, ".gz": gzip.compress(data), ".bz2": bz2.compress(data)}[suffix]


def test_beside_records_plain_text_is_left_out_and_counted(tmp_path: Path) -> None:
    found = inputs.find(".", corpus(tmp_path))
    assert [Path(file.name).name for file in found.files] == ["a.jsonl", "b.jsonl.gz", "c.parquet"]
    assert found.left_out == 1
    assert [Path(file.name).name for file in inputs.find(".", tmp_path, "a*").files] == ["a.jsonl"]


def test_records_without_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n\n{"text": null}\n{"text": "x"}\n')
    assert texts(pieces.cut(inputs.find("a.jsonl", tmp_path).files)) == ["x"]


# --- the folder ---


def test_any_number_of_processes_makes_the_same_folder_and_training_reads_it(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    one, three = made(source, tmp_path / "one"), made(source, tmp_path / "three", workers=3)
    assert one == three
    assert content(tmp_path / "one") == content(tmp_path / "three")
    everything = "".join(text for name in "abc" for text in documents(60, name)).encode()
    assert one["tokens"] == len(everything) and one["documents"] == 180
    dataset = open_dataset(small("one"), tmp_path, tmp_path / "cache")
    assert dataset.fingerprint == one["fingerprint"]
    assert not (tmp_path / "cache").exists(), "nothing was tokenized again"
    sample = int(dataset.sample_ids(1)[0])
    assert bytes(dataset.batch(1, 0, 4)[0].tolist()) == everything[sample * 8 : sample * 8 + 9]


def test_samples_run_through_the_edges_of_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate(["0123456", "7", "89abcdefghijklmnopqrstuvwxyzABCDEFG"]):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    made(tmp_path / "in", tmp_path / "out")
    dataset = open_dataset(small("out"), tmp_path, tmp_path / "cache")
    stream = dataset._parts[0].stream
    assert bytes(stream.read(5, 12)).decode() == "56789ab"
    assert stream.ends(0, stream.tokens).tolist() == [7, 8]


def test_a_finished_folder_is_left_as_it_is(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    made(source, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.name[0] != "."}
    assert made(source, tmp_path / "out")["kept"] == 3
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.name[0] != "."}
    assert after == before


@pytest.mark.parametrize(
    "moment",
    [
        "import trainer.data.prepare.piece as p; p.write_atomically = die",
        "import trainer.data.prepare.piece as p; p._Hashed.publish = die",
        "import trainer.data.prepare.plan as p; p.write_atomically = die",
    ],
)
def test_a_kill_at_any_moment_is_gone_on_from_and_ends_in_the_same_folder(tmp_path: Path, moment: str) -> None:
    """The pieces are made in the process itself, so that the kill strikes all at once."""
    source = corpus(tmp_path / "in")
    here = """
import os, signal
from trainer.data.prepare import conduct, piece
from trainer.data.tokenizer import Bytes
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def here(plan, left, tell):
    return {n: piece.make(n, plan.pieces[n], plan.request.out, Bytes(), "text", lambda done: None) for n in left}
conduct._make = here
"""
    killed = run(source, "--to", tmp_path / "out", first=here + moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out" / MANIFEST).exists()
    made(source, tmp_path / "out")
    made(source, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert not list((tmp_path / "out").glob(".making-*"))


STUCK = """
import sys, time
from trainer.data.prepare import piece
from trainer.data.prepare.__main__ import main
make = piece.make
def slow(number, *rest):
    if number:
        time.sleep(1000)
    return make(number, *rest)
piece.make = slow  # in every worker too: each imports this file
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_preparation_leaves_no_process_and_keeps_what_is_done(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    argv = [sys.executable, str(script), str(source), "--to", str(tmp_path / "out"), "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for_marks(tmp_path / "out", 1)
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait(10)
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    with pytest.raises(ConfigError, match=r"data\.path = 'out': its preparation is not finished: 1 of 3 pieces"):
        open_dataset(small("out"), tmp_path, tmp_path / "cache")
    assert made(source, tmp_path / "out")["kept"] == 1


def wait_for_marks(out: Path, count: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        marks = len(list(out.glob("part-*.json")))
        if marks >= count:
            return marks
        time.sleep(0.01)
    raise TimeoutError(f"no piece was done in {out}")


def test_a_piece_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    made(source, tmp_path / "out")
    whole = content(tmp_path / "out")
    os.truncate(tmp_path / "out" / "part-00001.tokens", 10)
    with pytest.raises(ConfigError, match=r"part-00001\.tokens has 10 bytes instead of \d+"):
        open_dataset(small("out"), tmp_path, tmp_path / "cache")
    assert made(source, tmp_path / "out")["kept"] == 2
    assert content(tmp_path / "out") == whole


def test_a_killed_worker_is_said_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = corpus(tmp_path / "in")
    monkeypatch.setattr(conduct, "_begin", _begin_and_die)
    with pytest.raises(WorkFailed, match="a process was killed, most likely for want of memory"):
        made(source, tmp_path / "out")
    monkeypatch.undo()
    assert made(source, tmp_path / "out")["pieces"] == 3


def _begin_and_die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    made(source, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--to = .*holds the preparation of something else: text_key differ"):
        made(source, tmp_path / "out", text_key="url")
    (source / "a.jsonl").write_bytes(lines(documents(61, "a")))
    with pytest.raises(ConfigError, match=r"holds the preparation of something else: files, pieces differ"):
        made(source, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--to = .*it is not empty, and has no holdfast-plan\.json"):
        made(source, source)


# --- room ---


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.parquet"])
def test_the_estimate_is_what_is_written_within_a_fifth(tmp_path: Path, name: str) -> None:
    corpus(tmp_path, 3000)
    cut = pieces.cut(inputs.find(name, tmp_path).files)
    written = sum(len(text.encode()) + 8 for text in documents(3000, name[0]))
    assert written <= room.estimate(cut, Bytes(), "text") <= 1.2 * written


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_what_a_reader_has_read_ahead_does_not_make_the_estimate_too_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """A file of the hub, of which a sample is read, and more ahead of it: its lines are read through a buffer."""
    chosen = np.random.default_rng(0).integers(0, 50_000, (20_000, 100))
    found = [" ".join(f"w{number}" for number in row) for row in chosen.tolist()]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed(lines(found), suffix))
    monkeypatch.setattr(InputFile, "open", lambda self: path.open("rb"))
    file = InputFile(path.name, path.stat().st_size, "", "jsonl", "me/corpus@0")
    written = sum(len(text) + 8 for text in found)
    assert written <= room.estimate(pieces.cut([file]), Bytes(), "text") <= 1.25 * written


def test_a_disk_without_room_is_refused_with_the_numbers_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("trainer.data.prepare.room.shutil.disk_usage", lambda path: usage(10, 0, 1000))
    with pytest.raises(WorkFailed, match=r"--to = .*about .* GiB will be written .* 9\.31e-07 GiB are free"):
        made(corpus(tmp_path / "in"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name[0] != "."] == [PLAN]


def test_a_file_that_changes_while_it_is_read_leaves_no_piece(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(documents(5)))
    (file,) = inputs.find("a.jsonl", tmp_path).files
    from trainer.data.prepare import piece

    stale = InputFile(file.name, file.size, "0", file.format)
    with pytest.raises(OSError, match=r"a\.jsonl changed while it was read"):
        piece.make(0, pieces.cut([stale])[0], tmp_path, Bytes(), "text", lambda done: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_the_manifest_names_where_the_tokens_come_from(tmp_path: Path) -> None:
    made(corpus(tmp_path / "in"), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["tokenizer"] == {"name": "bytes", "identity": "bytes", "end": None}
    assert (manifest["dtype"], manifest["source"]) == ("uint8", str(tmp_path / "in"))
    assert manifest["text_bytes"] == manifest["tokens"] == sum(part["tokens"] for part in manifest["parts"])
