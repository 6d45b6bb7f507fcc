"""Event logs of a run directory -> one timeline in seconds. Tolerant: whatever a crash leaves behind can be read.

What cannot be used is left out and flagged as an anomaly; nothing here raises for a bad log. A segment is read from the
archive that has it, else line by line; never twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.config import names
from holdfast.goodput.collect import Collection
from holdfast.goodput.job import read_job
from holdfast.goodput.lines import Segment, parse
from holdfast.goodput.timeline import Anomaly, Timeline

LOOKS = 10
"""How often the folder is listed because a segment went into an archive meanwhile. Archives come once a minute."""

_SEGMENTS = "*.jsonl"
_ARCHIVES = "*.parquet"


class _Gone(Exception):
    """A file that was listed is no longer there."""


@dataclass
class _Archive:
    path: Path
    segments: tuple[Segment, ...]
    skip: set[int] = field(default_factory=set)
    """Segments that an earlier archive has too: two compactions may have been at it at once."""


def read_run(run_dir: Path) -> Timeline:
    """The timeline of a run directory. Empty if nothing has been logged."""
    for _ in range(LOOKS - 1):
        try:
            return _read(run_dir)
        except _Gone:
            continue
    return _read(run_dir, gone_is_gone=True)


def _read(run_dir: Path, gone_is_gone: bool = False) -> Timeline:
    anomalies: list[Anomaly] = []
    # In this order: a segment is removed only after an archive has it, so none can be missed.
    files = sorted((run_dir / names.EVENTS).glob(_SEGMENTS))
    archives = list(_archives(sorted((run_dir / names.EVENTS).glob(_ARCHIVES)), anomalies))
    archived = {segment.file for archive in archives for segment in archive.segments}
    segments = [
        segment for path in files if path.name not in archived for segment in _segment(path, anomalies, gone_is_gone)
    ]
    kept = [s for archive in archives for n, s in enumerate(archive.segments) if n not in archive.skip]
    collection = Collection([*segments, *kept])
    for archive in archives:
        _add_archive(collection, archive, anomalies)
    for segment in segments:
        collection.add_segment(segment)
    for segment in sorted([*segments, *kept], key=lambda segment: segment.file):
        anomalies += [Anomaly(kind, segment.file, text) for kind, text in segment.findings]
    events, origin, found = collection.events()
    return Timeline(events, collection.processes, (*anomalies, *found), origin, read_job(run_dir))


def _segment(path: Path, anomalies: list[Anomaly], gone_is_gone: bool) -> Iterator[Segment]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not gone_is_gone:
            raise _Gone from None
        anomalies.append(Anomaly("unreadable", path.name, "vanished while the folder was read"))
        return
    except OSError as error:
        anomalies.append(Anomaly("unreadable", path.name, f"cannot be read: {error.strerror}"))
        return
    segment, why = parse(path.name, content)
    anomalies += [Anomaly(kind, path.name, text) for kind, text in why]
    if segment is not None:
        yield segment


def _archives(paths: list[Path], anomalies: list[Anomaly]) -> Iterator[_Archive]:
    if not paths:
        return
    from holdfast.goodput.archive import UnusableArchive, segments_of  # pyarrow takes a while to import

    known: set[str] = set()
    for path in paths:
        try:
            archive = _Archive(path, segments_of(path))
        except UnusableArchive as error:
            anomalies.append(Anomaly("unreadable", path.name, f"cannot be read: {error}"))
            continue
        archive.skip = {number for number, segment in enumerate(archive.segments) if segment.file in known}
        known.update(segment.file for segment in archive.segments)
        yield archive


def _add_archive(collection: Collection, archive: _Archive, anomalies: list[Anomaly]) -> None:
    from holdfast.goodput.archive import UnusableArchive, rows

    files = [segment.file for segment in archive.segments]
    try:
        for name, segment, found, rests in rows(archive.path, archive.skip):
            collection.add_rows(name, files, segment, found, rests)
    except (UnusableArchive, ValueError) as error:
        text = f"is damaged; the rest of it is left out: {error}"
        anomalies.append(Anomaly("unreadable", archive.path.name, text))
