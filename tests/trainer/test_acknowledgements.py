"""The wait for all ranks' parts: it believes whole files only, can be ended at once, and goes easy on the storage."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.checkpoint import acknowledgements
from trainer.checkpoint.acknowledgements import CalledOff, NotAcknowledged, acknowledge, await_all, file_of


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Looks:
    """Counts listings, and lets something happen before each."""

    def __init__(self, clock: Clock) -> None:
        self.at: list[float] = []
        self.before: dict[int, Any] = {}
        self.clock = clock

    def __call__(self, folder: Path) -> list[str]:
        self.at.append(self.clock.now)
        self.before.get(len(self.at), lambda: None)()
        return [entry.name for entry in folder.iterdir()]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    clock = Clock()
    looks = Looks(clock)
    monkeypatch.setattr(acknowledgements, "time", clock)
    monkeypatch.setattr(acknowledgements, "os", SimpleNamespace(listdir=looks))
    return looks


def _never() -> bool:
    return False


def test_parts_are_returned_by_rank_in_whatever_order_they_came(tmp_path: Path, looks: Looks) -> None:
    for look, rank in ((2, 2), (3, 0), (5, 1)):
        looks.before[look] = lambda rank=rank: acknowledge(tmp_path, rank, [{"name": f"part-{rank}"}], [])
    found = await_all(tmp_path, 3, 1100.0, _never)
    assert [(part["rank"], part["files"][0]["name"]) for part in found] == [(0, "part-0"), (1, "part-1"), (2, "part-2")]
    assert len(looks.at) == 5, "the last part is seen by the first look after it"


def test_a_file_that_is_still_being_written_is_not_a_part(tmp_path: Path, looks: Looks) -> None:
    acknowledge(tmp_path, 0, [], [])
    (tmp_path / f".{file_of(tmp_path, 1).name}.host.1.2.tmp").write_text(json.dumps({"rank": 1}))
    (tmp_path / "rank-10.json").write_text("{}")
    with pytest.raises(NotAcknowledged, match=r"rank 1 did not acknowledge within checkpoint\.persist_timeout_s"):
        await_all(tmp_path, 2, 1005.0, _never)


def test_the_wait_ends_at_its_deadline_and_names_who_is_missing(tmp_path: Path, looks: Looks) -> None:
    for rank in range(1000):
        if rank % 7:
            file_of(tmp_path, rank).write_text("{}")
    with pytest.raises(NotAcknowledged, match=r"ranks 0, 7, 14, 21, 28, 35, 42, 49 and 135 more did not acknowledge"):
        await_all(tmp_path, 1000, 1003.0, _never)
    assert looks.at[-1] == pytest.approx(1003.0)


def test_a_long_wait_costs_four_listings_a_second_and_reads_each_file_once(
    tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = acknowledgements._read

    def noted(path: Path) -> dict[str, Any]:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(acknowledgements, "_read", noted)
    for rank in range(64):
        acknowledge(tmp_path, rank, [], [])
    with pytest.raises(NotAcknowledged):
        await_all(tmp_path, 65, 1100.0, _never)
    assert sorted(read) == sorted(f"rank-{rank}.json" for rank in range(64))
    assert 400 <= len(looks.at) <= 412
    assert looks.at[1] - looks.at[0] == pytest.approx(0.02), "a rank that is hardly late is seen soon"


def test_who_calls_the_wait_off_does_not_wait_for_the_next_look(tmp_path: Path, looks: Looks) -> None:
    called_at = 1010.1
    acknowledge(tmp_path, 0, [], [])
    with pytest.raises(CalledOff, match="while rank 1 had not acknowledged"):
        await_all(tmp_path, 2, 1100.0, lambda: looks.clock.now >= called_at)
    assert looks.at[-1] < called_at
    assert looks.clock.now - called_at < 0.03


def test_a_wait_that_was_called_off_before_it_began_does_not_look_at_all(tmp_path: Path, looks: Looks) -> None:
    acknowledge(tmp_path, 0, [], [])
    with pytest.raises(CalledOff):
        await_all(tmp_path, 1, 1100.0, lambda: True)
    assert not looks.at


def test_storage_that_refuses_ends_the_wait_at_once(tmp_path: Path, looks: Looks) -> None:
    file_of(tmp_path, 0).write_text('{"rank": 0, "fi')
    with pytest.raises(OSError, match=r"rank-0.json: it was written as a whole and is no JSON now"):
        await_all(tmp_path, 2, 1100.0, _never)
    with pytest.raises(FileNotFoundError):
        await_all(tmp_path / "gone", 2, 1100.0, _never)
    assert len(looks.at) == 2


def test_with_a_real_clock_and_another_thread_the_parts_come_too(tmp_path: Path) -> None:
    def write_all() -> None:
        for rank in (1, 0):
            time.sleep(0.05)
            acknowledge(tmp_path, rank, [], [])

    writer = threading.Thread(target=write_all)
    writer.start()
    found = await_all(tmp_path, 2, time.monotonic() + 30, _never)
    writer.join(30)
    assert [part["rank"] for part in found] == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["rank-0.json", "rank-1.json"]
