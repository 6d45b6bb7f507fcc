"""Finished segments become archives, and nothing is lost, counted twice or read differently by it, whenever it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.goodput import archive, compaction, events, reader
from holdfast.goodput.compaction import Compaction
from holdfast.goodput.events import EventLog
from holdfast.goodput.ledger import account
from holdfast.goodput.lines import parse
from holdfast.goodput.reader import read_run
from holdfast.goodput.timeline import Timeline
from tests.goodput.builder import Run, begin, end, train


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(autouse=True)
def small_segments() -> Iterator[None]:
    """Segments of a few lines, and no minimum for a round."""
    with patch.object(events, "SEGMENT_BYTES", 700), patch.object(compaction, "LEAST_BYTES", 1):
        yield


def restarted(run: Run) -> None:
    """Two attempts of two ranks, of several segments each."""
    logs = run.ranks(0)
    begin(logs, 1)
    train(logs, 2, 1, 20)
    logs[1].point(22.5, "fault", id="exception-rank1", kind="exception", rank=1, step=21)
    end(logs, 23, "exception", error="boom", step=20)
    new = run.ranks(25, cycle=1)
    begin(new, 26)
    for log in new:
        log.span(26, 27, "restore", step=15)
    train(new, 27, 16, 40)
    end(new, 60, "complete")


def segments(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "events").glob("*.jsonl"))


def archives(run: Run) -> list[Path]:
    return sorted((run.path / "events").glob("*.parquet"))


def content(timeline: Timeline) -> tuple[Any, ...]:
    """All that a timeline says."""
    anomalies = sorted((a.where, a.kind, a.text) for a in timeline.anomalies)
    return list(timeline.events), timeline.processes, anomalies, timeline.origin, account(timeline).summary()


def test_archives_and_lines_mixed_say_the_same_as_lines_alone(run: Run) -> None:
    restarted(run)
    before, names = content(read_run(run.path)), segments(run)
    compact = Compaction(run.path / "events")
    assert compact.round() > 4
    assert 4 <= len(segments(run)) < len(names)
    assert content(read_run(run.path)) == before


def test_the_segment_that_is_written_stays_and_an_older_attempts_last_one_goes_once_it_is_quiet(run: Run) -> None:
    restarted(run)
    compact = Compaction(run.path / "events")
    compact.round()
    left = segments(run)
    assert len(left) == 4  # the last of each of four processes
    compact.round()
    assert segments(run) == [name for name in left if name in segments(run)]
    assert len(segments(run)) == 2  # those of the attempt that may still be written
    assert len({event.process.file for event in read_run(run.path).events}) == 4


def test_an_older_attempts_log_that_still_grows_stays(run: Run) -> None:
    restarted(run)
    compact = Compaction(run.path / "events")
    compact.round()
    stale = run.logs[0]
    stale.point(70, "stale")
    compact.round()
    assert len(segments(run)) == 3
    assert len(read_run(run.path).named("stale")) == 1


def test_an_archive_of_processes_that_logged_nothing_is_whole(run: Run, tmp_path: Path) -> None:
    run.ranks(0)
    logs = (run.path / "events").glob("*.jsonl")
    found = [parse(path.name, path.read_bytes().splitlines(keepends=True)[0])[0] for path in logs]
    empty = [segment for segment in found if segment is not None]
    assert empty and not any(segment.rows for segment in empty)
    written = archive.write(tmp_path, empty)
    assert list(archive.rows(written)) == [] and archive.segments_of(written) == tuple(empty)


def dies_at_the_rename() -> Any:
    return patch.object(Path, "rename", side_effect=Killed)


def dies_at_unlink(number: int) -> Callable[[], Any]:
    real, calls = Path.unlink, iter(range(10_000))

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".jsonl" and next(calls) == number:
            raise Killed
        real(self, missing_ok=missing_ok)

    return lambda: patch.object(Path, "unlink", unlink)


INSTANTS: dict[str, Callable[[], Any]] = {
    "while the archive is written": lambda: patch.object(os, "fsync", side_effect=Killed),
    "before its name is there": dies_at_the_rename,
    "before the first segment is removed": dies_at_unlink(0),
    "between two segments": dies_at_unlink(3),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_compaction_killed_at_any_instant_loses_and_doubles_nothing_and_the_next_one_ends_it(
    run: Run, instant: str
) -> None:
    restarted(run)
    before = content(read_run(run.path))
    with INSTANTS[instant](), pytest.raises(Killed):
        Compaction(run.path / "events").round()
    assert content(read_run(run.path)) == before
    again = Compaction(run.path / "events")
    again.round()
    again.round()
    assert content(read_run(run.path)) == before
    assert len(segments(run)) == 2
    assert list((run.path / "events").glob("*.tmp")) == []
    archived = [segment.file for path in archives(run) for segment in archive.segments_of(path)]
    assert len(archived) == len(set(archived))


def test_two_compactions_at_once_double_nothing(run: Run) -> None:
    restarted(run)
    before = content(read_run(run.path))
    one, other = Compaction(run.path / "events"), Compaction(run.path / "events")
    keep = patch.object(Path, "unlink", lambda self, missing_ok=False: None)
    with keep:
        one.round()  # the other one has read the segments already
        other._known.update(path.name for path in archives(run))
        other.round()
    assert len(archives(run)) == 2
    assert content(read_run(run.path)) == before


def test_a_segment_archived_between_listing_and_reading_is_read_from_the_archive(run: Run) -> None:
    restarted(run)
    before = content(read_run(run.path))
    compact = Compaction(run.path / "events")
    rounds: list[int] = []

    def archived_first(name: str, text: bytes) -> Any:
        if not rounds:
            rounds.append(compact.round())
        return parse(name, text)

    with patch.object(reader, "parse", archived_first):
        assert content(read_run(run.path)) == before
    assert rounds[0] > 4


@pytest.mark.parametrize("damage", ["cut", "foreign", "garbled"])
def test_a_damaged_archive_is_named_and_the_rest_is_read(run: Run, damage: str) -> None:
    restarted(run)
    Compaction(run.path / "events").round()
    (path,) = archives(run)
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "foreign":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"x": [1, 2]}), path)
    else:
        path.write_bytes(whole[:4] + b"\xff" * 400 + whole[404:])
    timeline = read_run(run.path)
    assert ("unreadable", path.name) in [(anomaly.kind, anomaly.where) for anomaly in timeline.anomalies]
    ledger = account(timeline)
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert len(timeline.events) > 0


def test_of_an_archive_damaged_in_the_middle_what_comes_before_is_read(run: Run) -> None:
    import pyarrow.parquet as pq

    restarted(run)
    everything = len(read_run(run.path).events)
    with patch.object(archive, "_ROW_GROUP", 10):
        Compaction(run.path / "events").round()
    (path,) = archives(run)
    groups = pq.read_metadata(path)
    chunk = groups.row_group(groups.num_row_groups // 2).column(2)
    at, size = chunk.data_page_offset, chunk.total_compressed_size
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + b"\xff" * size + whole[at + size :])
    timeline = read_run(run.path)
    assert [anomaly.kind for anomaly in timeline.anomalies if anomaly.kind == "unreadable"] == ["unreadable"]
    assert everything / 4 < len(timeline.events) < everything
    assert all(0 <= event.start <= event.end < 100 for event in timeline.events)


def test_an_archive_that_holds_more_than_it_says_is_damaged(run: Run) -> None:
    restarted(run)
    Compaction(run.path / "events").round()
    real = archive._listed

    def fewer(metadata: Any) -> Any:
        found = real(metadata)
        for segment in found:
            segment.counts["step"] = 1
        return found

    with patch.object(archive, "_listed", fewer):
        timeline = read_run(run.path)
    assert "unreadable" in [anomaly.kind for anomaly in timeline.anomalies]


@pytest.mark.parametrize("schema", [7, None, "one"])
def test_a_segment_of_another_version_is_left_for_that_version(run: Run, schema: Any) -> None:
    with patch.object(events, "SCHEMA", schema):
        restarted(run)
    names = segments(run)
    assert Compaction(run.path / "events").round() == 0
    assert segments(run) == names


def test_names_that_no_archive_can_hold_stay_as_lines(run: Run) -> None:
    restarted(run)
    first = run.logs[0].path
    first.write_bytes(first.read_bytes() + b'{"t":5000.0,"name":"\\ud800"}\n')
    before = content(read_run(run.path))
    Compaction(run.path / "events").round()
    assert first.exists()
    assert content(read_run(run.path)) == before


def test_what_was_wrong_with_a_segment_is_still_said_of_the_archive(run: Run) -> None:
    restarted(run)
    first = run.logs[0].path
    first.write_bytes(first.read_bytes() + b'{"t":1,"na{"t":2}\n')
    Compaction(run.path / "events").round()
    assert not first.exists()
    assert [(a.kind, a.where) for a in read_run(run.path).anomalies] == [("bad_line", first.name)]


def test_a_round_with_little_to_do_waits_for_more(run: Run) -> None:
    restarted(run)
    names = segments(run)
    with patch.object(compaction, "LEAST_BYTES", 10**6):
        assert Compaction(run.path / "events").round() == 0
    assert segments(run) == names


def test_fields_of_any_kind_come_back_from_an_archive_as_they_were(run: Run) -> None:
    log = EventLog(run.path / "events", "rank", rank=0, world_size=1)
    fields: dict[str, Any] = {
        "step": 3, "loss": 2.5, "flag": True, "none": None, "text": "ü", "nested": {"a": [1, 2.0]}, "big": 2**80,
        "nan": float("inf"), "error": 5, "negative": -(2**63) + 1, "least": -(2**63), "mixed": 1,
    }  # fmt: skip
    log.point("all", **fields)
    log.point("all", mixed="x", step=True)
    log.point("all", mixed=1.5)
    for _ in range(20):
        log.point("filler", text="x" * 50)
    log.close()
    before = [dict(event.fields) for event in read_run(run.path).named("all")]
    assert Compaction(run.path / "events").round() > 0
    after = [dict(event.fields) for event in read_run(run.path).named("all")]
    assert after == before == [fields, {"mixed": "x", "step": True}, {"mixed": 1.5}]
    assert {key: type(value) for key, value in after[0].items()} == {key: type(value) for key, value in fields.items()}
