"""The driver of the bench of throughput: what it starts, what it tries again, and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import throughput
from bench.rank_processes import Ended
from bench.throughput_spec import HOLDFAST, TITAN

NO_ROOM = "rank 0 ended with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, dict[str, Any]]:
    raw, out = tmp_path / "raw.jsonl", tmp_path / "out.json"
    all_words = ["--cpu", "--models", "1gpu", "--raw", str(raw), "--out", str(out), "--commit", "x", *words]
    monkeypatch.setattr(sys, "argv", ["throughput", *all_words])
    code = throughput.main()
    return code, json.loads(out.read_text(encoding="utf-8"))


def test_a_bench_without_torchtitan_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.throughput.importlib.util.find_spec", lambda _: None)
    code, result = bench(tmp_path, monkeypatch, "--arms", TITAN)
    assert code == 0 and result["rows"]
    assert all("cannot be imported" in row["skipped"] for row in result["rows"])
    assert "cannot be imported" in capsys.readouterr().out


def test_a_bench_that_the_deadline_keeps_from_its_trials_has_not_done_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.throughput.run_ranks", lambda *_, **__: pytest.fail("a trial was started"))
    code, result = bench(tmp_path, monkeypatch, "--arms", HOLDFAST, "--deadline", "20")
    assert code == 1 and result["rows"] == []
    said = capsys.readouterr().out
    assert "not started" in said and "still to run, by another call: 1gpu/holdfast/none/mb4" in said


@pytest.mark.parametrize(
    ("ended", "codes"),
    [
        (Ended(False, NO_ROOM), [(0, 1), (0, 1)]),
        (Ended(False, "it broke"), [(1, 1), (1, 2), (1, 2)]),
        (Ended(False, "the limit passed", late=True), [(1, 1), (1, 2), (1, 3)]),
    ],
)
def test_failures_are_tried_twice_unless_it_was_the_deadline_and_no_room_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended, codes: list[tuple[int, int]]
) -> None:
    started: list[str] = []

    def fake(_: str, order: str, *__: Any, **___: Any) -> tuple[Ended, str]:
        started.append(order)
        return ended, ""

    monkeypatch.setattr("bench.throughput.run_ranks", fake)
    for code, count in codes:
        words = ("--trial", "1gpu/eager_fsdp/none/mb1/eager", "--deadline", "100")
        assert (bench(tmp_path, monkeypatch, *words)[0], len(started)) == (code, count)
