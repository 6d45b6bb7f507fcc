"""Turns finished segments of rank logs into archives: `python -m holdfast.goodput.compaction EVENTS`.

A process of its own beside the control pod's supervisor, with the lowest priority: no rank pays for it. It may be
killed at any instant. An archive appears whole, under its final name, before the first of its segments is removed;
whoever finds both believes the archive, and the next round removes what is left.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.goodput import archive
from holdfast.goodput.event import Process
from holdfast.goodput.events import segment_of
from holdfast.goodput.lines import OTHER_VERSION, Segment, parse, process_of

logger = logging.getLogger(__name__)

EVERY_S = 60.0
"""Between two rounds. A rank fills a segment in minutes, and a dead rank's log must not grow from one to the next."""
LEAST_BYTES = 2**20
"""Rounds with less to do wait for more: each archive is one more file to open for every reader."""
MOST_BYTES = 32 * 2**20
"""Of segments in one archive; bounds the memory of this process to some 300 MB."""
_FIRST_LINE_BYTES = 4096


class Compaction:
    """One folder of event logs. Each `round` looks once; what it saw before tells which logs have ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()
        """Archives whose contents have been learned."""
        self._processes: dict[str, Process] = {}
        """Of the segments that are there; forgotten with them, so that a long run does not fill the memory."""
        self._last: dict[str, int] = {}
        """Number of the last segment of each process, by its first one."""
        self._newest = (0, 0)
        """(generation, cycle) of the newest attempt."""
        self._sizes: dict[str, int] = {}

    def round(self) -> int:
        """Archive what is finished, if there is enough of it. Returns the number of segments. Raises OSError."""
        for path in self._folder.glob(f"*{archive.TEMPORARY}"):
            path.unlink(missing_ok=True)  # of a killed round; one that is under way elsewhere fails, and tries again
        archived = self._newly_archived()
        sizes = {path.name: size for path in self._folder.glob("rank-*.jsonl") if (size := _size(path)) is not None}
        for name in archived & sizes.keys():
            (self._folder / name).unlink(missing_ok=True)  # its archive's round was killed before it could
            del sizes[name]
        self._processes = {name: process for name, process in self._processes.items() if name in sizes}
        for name in sizes.keys() - self._processes.keys():
            self._learn(name, _anchor(self._folder / name))
        finished = [name for name in self._processes if self._is_finished(name, sizes[name])]
        finished.sort(key=lambda name: (self._processes[name].generation, self._processes[name].cycle, name))
        self._sizes = sizes
        if sum(sizes[name] for name in finished) < LEAST_BYTES:
            return 0
        return sum(self._archive(batch) for batch in _batches(finished, sizes))

    def _newly_archived(self) -> set[str]:
        """Segments in archives that were not here at the last round."""
        found: set[str] = set()
        for path in self._folder.glob(f"*{archive.SUFFIX}"):
            if path.name not in self._known:
                self._known.add(path.name)
                try:
                    segments = archive.segments_of(path)
                except archive.UnusableArchive as error:
                    logger.warning("%s cannot be used: %s", path.name, error)
                    continue
                for segment in segments:
                    self._learn(segment.file, process_of(segment.file, segment.anchor))
                found.update(segment.file for segment in segments)
        return found

    def _learn(self, name: str, process: Process | None) -> None:
        if process is not None:
            first, number = segment_of(name)
            self._processes[name] = process
            self._last[first] = max(self._last.get(first, 0), number)
            self._newest = max(self._newest, (process.generation, process.cycle))

    def _is_finished(self, name: str, size: int) -> bool:
        """Whether nobody writes a segment any more: it has a successor, or it is of an older attempt and did not grow
        since the last round. A stale rank that writes again after that loses those lines; no ledger counts them."""
        first, number = segment_of(name)
        process = self._processes[name]
        older = (process.generation, process.cycle) < self._newest
        return number < self._last[first] or (older and self._sizes.get(name) == size)

    def _archive(self, names: Sequence[str]) -> int:
        segments = [segment for name in names if (segment := _usable(self._folder / name)) is not None]
        if not segments:
            return 0
        self._known.add(archive.write(self._folder, segments).name)
        for segment in segments:
            (self._folder / segment.file).unlink(missing_ok=True)
        return len(segments)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _anchor(path: Path) -> Process | None:
    """The process that a segment's first line names. None if that line is not whole (yet)."""
    try:
        with open(path, "rb") as file:
            line, newline, _ = file.read(_FIRST_LINE_BYTES).partition(b"\n")
    except OSError:
        return None
    segment, _ = parse(path.name, line + newline) if newline else (None, [])
    return None if segment is None else process_of(path.name, segment.anchor)


def _usable(path: Path) -> Segment | None:
    """The segment, unless it can be read only as it is: line by line, or by another version."""
    try:
        segment, _ = parse(path.name, path.read_bytes())
    except OSError:
        return None
    if segment is None or any(kind in OTHER_VERSION for kind, _ in segment.findings):
        return None
    try:
        for name, rows in segment.rows.items():
            "".join((name, *rows.whole, *rows.real)).encode()
    except UnicodeEncodeError:
        return None  # half of a character in a damaged name
    return segment


def _batches(names: Sequence[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    for name in names:
        if batch and sum(sizes[other] for other in batch) + sizes[name] > MOST_BYTES:
            yield batch
            batch = []
        batch.append(name)
    if batch:
        yield batch


def main() -> None:
    """Rounds, until the process that started this one has ended."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.goodput.compaction")
    parser.add_argument("folder", metavar="EVENTS", type=Path, help="the folder of a run's event logs")
    folder = parser.parse_args().folder
    logging.basicConfig(level=logging.INFO, format="%(asctime)s events %(levelname)s %(message)s", stream=sys.stdout)
    parent = os.getppid()
    os.nice(19)
    compaction = Compaction(folder)
    while os.getppid() == parent:
        try:
            archived = compaction.round()
        except OSError as error:
            logger.warning("event logs were not archived: %s", error)
        else:
            if archived:
                logger.info("archived %d segments of event logs", archived)
        due = time.monotonic() + EVERY_S
        while time.monotonic() < due and os.getppid() == parent:
            time.sleep(1.0)


if __name__ == "__main__":
    main()
