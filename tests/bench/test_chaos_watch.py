"""What `make chaos` sees in a checkpoint folder, and what it calls by which name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.attempt import EventTail
from bench.chaos.plan import (
    ACKNOWLEDGE,
    COMMIT,
    COMPUTE,
    FINISH,
    PRUNE,
    RESTORE,
    STAGE,
    STARTING,
    WRITE,
    Sight,
    phase_of,
)
from bench.chaos.watch import Watch
from holdfast.checkpoint_folder import FileRecord, Marker
from holdfast.config import names
from holdfast.goodput import events

PARTIAL = "step-00000009.g1-c0-r0-s3.partial"
STARTED: list[dict[str, Any]] = [{"name": "data_open"}]
TRAINS: list[dict[str, Any]] = [*STARTED, {"name": "data"}]


def _commit(folder: Path, step: int, content: bytes = b"weights") -> Path:
    place = folder / names.step_folder(step)
    place.mkdir(parents=True, exist_ok=True)
    (place / "__0_0.distcp").write_bytes(content)
    marker = Marker(step, "g1-c0-r0", 1, 2, (FileRecord.of_content("__0_0.distcp", content),))
    (place / names.COMMITTED).write_text(marker.text())
    (folder / names.LATEST).write_text(place.name)
    return place


def test_commits_that_follow_one_another_are_no_complaint(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.look_now() == 0
    for step in (3, 6, 9):
        _commit(tmp_path, step)
        assert watch.look_now() == step
    shutil.rmtree(tmp_path / names.step_folder(3))
    (tmp_path / PARTIAL).mkdir()
    watch.look_now()
    assert watch.complaints == [] and watch.highest == 9
    assert [step for _, step in watch.commits] == [3, 6, 9]


def test_a_newest_step_that_goes_back_is_seen(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    _commit(tmp_path, 3)
    last = _commit(tmp_path, 6)
    watch.look_now()
    (last / names.COMMITTED).unlink()
    (tmp_path / names.LATEST).write_text(names.step_folder(3))
    watch.look_now()
    assert watch.complaints == ["the newest committed step went back from 6 to 3"]


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone"])
def test_a_committed_step_that_is_not_whole_is_seen(tmp_path: Path, harm: str) -> None:
    watch = Watch(tmp_path)
    file = _commit(tmp_path, 3) / "__0_0.distcp"
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(b"weight" if harm == "cut" else b"Weights")
    watch.look_now()
    assert len(watch.complaints) == 1 and "is not whole" in watch.complaints[0]


def test_a_pointer_to_what_is_not_committed_is_seen(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    _commit(tmp_path, 3)
    (tmp_path / names.LATEST).write_text(names.step_folder(6))
    watch.look_now()
    assert watch.complaints == ["LATEST names step-00000006, which is not committed"]


def test_the_watch_looks_on_its_own(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    _commit(tmp_path, 3)
    with watch.looking():
        while watch.looks < 5:
            pass
    assert watch.complaints == [] and watch.highest == 3


@pytest.mark.parametrize(
    ("events", "unfinished", "phase"),
    [
        ([], {}, STARTING),
        (STARTED, {}, RESTORE),
        (TRAINS, {}, COMPUTE),
        ([*TRAINS, {"name": "stage", "step": 9}], {}, STAGE),
        ([*TRAINS, {"name": "stage", "step": 9}, {"name": "save_failed", "step": 9}], {}, COMPUTE),
        (TRAINS, {PARTIAL: {"__0_0.distcp"}}, WRITE),
        (TRAINS, {PARTIAL: {"__0_0.distcp", "rank-0.json"}}, ACKNOWLEDGE),
        (TRAINS, {PARTIAL: {"rank-0.json", "rank-1.json"}}, COMMIT),
        (TRAINS, {PARTIAL: {"__0_0.distcp", ".metadata"}}, COMMIT),
        (TRAINS, {PARTIAL: {"__0_0.distcp", ".pending-g1-c0-r0-s3"}}, COMMIT),
        (TRAINS, {"step-00000009": {"__0_0.distcp"}}, COMMIT),
        (TRAINS, {"step-00000003": {"__0_0.distcp"}}, PRUNE),
        (TRAINS, {PARTIAL.replace("c0", "c1"): {"__0_0.distcp"}}, COMPUTE),
    ],
)
def test_what_lies_in_the_folder_tells_what_the_run_was_doing(
    events: list[dict[str, Any]], unfinished: dict[str, set[str]], phase: str
) -> None:
    sight = Sight((6,), {name: frozenset(files) for name, files in unfinished.items()}, "step-00000006")
    assert phase_of(sight, events, attempt="g1-c0-r0", before=[], keep=2, steps=40) == phase


def test_leftovers_of_dead_attempts_do_not_count() -> None:
    sight = Sight((6,), {"step-00000009": frozenset({"__0_0.distcp"})}, "step-00000006")
    assert phase_of(sight, TRAINS, attempt="g1-c1-r0", before=["step-00000009"], keep=2, steps=40) == COMPUTE


@pytest.mark.parametrize(
    ("committed", "latest", "phase"), [((3, 6), 3, COMMIT), ((0, 3, 6), 6, PRUNE), ((3, 6), 6, FINISH)]
)
def test_commit_ends_with_the_pointer_and_prune_with_what_retention_wants(
    committed: tuple[int, ...], latest: int, phase: str
) -> None:
    sight = Sight(committed, {}, names.step_folder(latest))
    assert phase_of(sight, TRAINS, attempt="g1-c0-r0", before=[], keep=2, steps=6) == phase


def test_what_is_damaged_on_purpose_may_be_broken_and_set_aside(tmp_path: Path) -> None:
    watch = Watch(tmp_path, damaged=True)
    _commit(tmp_path, 3)
    last = _commit(tmp_path, 6)
    (last / "__0_0.distcp").write_bytes(b"Weights")
    watch.look_now()
    (last / names.COMMITTED).unlink()
    (tmp_path / names.LATEST).write_text(names.step_folder(3))
    watch.look_now()
    assert watch.complaints == [] and watch.highest == 6


def test_a_log_that_goes_on_in_another_file_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEGMENT_BYTES", 600)
    log = events.EventLog(tmp_path, "rank", rank=0)
    tail = EventTail(tmp_path)
    tail.pid = os.getpid()
    for step in range(60):
        log.point("step", step=step)
        if step in (0, 7, 8, 30):
            assert [event["step"] for event in tail.read() if event["name"] == "step"] == list(range(step + 1))
    assert len(list(tmp_path.iterdir())) > 3
    assert [event["step"] for event in tail.read() if event["name"] == "step"] == list(range(60))
    log.close()


def test_the_log_of_another_process_is_not_followed(tmp_path: Path) -> None:
    log = events.EventLog(tmp_path, "rank", rank=0)
    tail = EventTail(tmp_path)
    tail.pid = os.getpid() + 1
    assert tail.read() == []
    log.close()
