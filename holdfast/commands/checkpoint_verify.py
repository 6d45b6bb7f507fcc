"""`holdfast checkpoint verify`: reads committed steps again and compares them with the checksums of their markers."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint_folder import SAMPLE_EVERY, FileRecord, Marker, damage, look, read_exactly, read_marker
from holdfast.commands.checkpoint_steps import choose, size_text
from holdfast.commands.progress import Progress
from holdfast.config import names
from holdfast.goodput.locate import locate_run
from holdfast.leases import Lease

EXIT_DAMAGED = 1
THREADS = 16
"""Reads side by side, each of one block: a shared file system is fast only if asked for much at once."""
PIECE_BLOCKS = 32
"""Blocks that one thread verifies at a time (256 MiB): large files are shared out too, and progress moves."""


@dataclass(frozen=True)
class Piece:
    """Blocks of one file, ascending."""

    file: FileRecord
    blocks: tuple[int, ...]


@dataclass
class Verdict:
    """What came out for one step. bytes: read and compared."""

    step: int
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def main(args: argparse.Namespace) -> int:
    """Exit code 0: all whole, 1: damage found; 2 through ConfigError."""
    run_dir = locate_run(args.directory)
    folder = run_dir / names.CHECKPOINTS
    since = time.monotonic()
    found = look(folder)
    unreadable = [step for step in found.damaged if args.step in (None, step)]
    verdicts = [_unreadable(folder, step) for step in unreadable]
    others = not unreadable or (args.step is None and found.committed)
    for step in choose(folder, found, args.step) if others else ():
        with Lease(folder, step, "checkpoint verify"):
            marker = read_marker(folder / names.step_folder(step))
            if marker is None:
                print(f"step {step}: training deleted it before it could be leased; not verified")
                continue
            verdicts.append(verify(folder, marker, SAMPLE_EVERY if args.sampled else 1))
        _tell(verdicts[-1], marker, sampled=args.sampled)
    seconds, read = time.monotonic() - since, sum(verdict.bytes for verdict in verdicts)
    print(f"{size_text(read)} read in {seconds:.1f} s, {read / 1e9 / max(seconds, 1e-9):.2f} GB/s")
    return EXIT_DAMAGED if any(verdict.problems for verdict in verdicts) else 0


def _unreadable(checkpoints: Path, step: int) -> Verdict:
    """Of a step whose marker cannot be read: nothing says what its files should be."""
    marker = checkpoints / names.step_folder(step) / names.COMMITTED
    fix = "look again if the storage had an error, else restore it from a copy: until then this step is not used"
    print(f"{marker}: it is no marker that can be read; {fix}")
    print(f"step {step}: DAMAGED, 1 problem", flush=True)
    return Verdict(step, problems=[str(marker)])


def verify(checkpoints: Path, marker: Marker, every: int) -> Verdict:
    """Compare a committed step with its marker. every: each n-th block, the first and the last ones; 1 means all."""
    folder, verdict = checkpoints / names.step_folder(marker.step), Verdict(marker.step)
    whole = []
    for file in marker.files:
        wrong = list(damage(folder, [file], marker.block_bytes, every=None))
        verdict.problems += wrong
        whole += [] if wrong else [file]
    pieces = list(_pieces(whole, every))
    total = sum(_bytes_of(piece, marker.block_bytes) for piece in pieces)
    with ThreadPoolExecutor(THREADS) as pool, Progress(f"step {marker.step}", total) as progress:
        running = [pool.submit(_compare, folder, piece, marker.block_bytes) for piece in pieces]
        try:
            for done in as_completed(running):
                count, problems = done.result()
                verdict.bytes += count
                verdict.problems += problems
                progress.advance(count)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C need not wait for what has not begun
            raise
    verdict.problems.sort()
    return verdict


def _pieces(files: list[FileRecord], every: int) -> Iterator[Piece]:
    for file in files:
        last = len(file.xxh3) - 1
        blocks = [index for index in range(last + 1) if index % every == 0 or index == last]
        for start in range(0, len(blocks), PIECE_BLOCKS):
            yield Piece(file, tuple(blocks[start : start + PIECE_BLOCKS]))


def _bytes_of(piece: Piece, block_bytes: int) -> int:
    return sum(min(block_bytes, piece.file.bytes - index * block_bytes) for index in piece.blocks)


def _compare(folder: Path, piece: Piece, block_bytes: int) -> tuple[int, list[str]]:
    """Bytes that were read, and what is wrong with them."""
    name, count = f"{folder.name}/{piece.file.name}", 0
    problems = []
    try:
        with open(folder / piece.file.name, "rb", buffering=0) as stream:
            start, end = piece.blocks[0] * block_bytes, (piece.blocks[-1] + 1) * block_bytes
            # What this machine has written itself may still lie in its memory; what counts is what the storage has.
            os.posix_fadvise(stream.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)
            for index in piece.blocks:
                stream.seek(index * block_bytes)
                content = read_exactly(stream, min(block_bytes, piece.file.bytes - index * block_bytes))
                count += len(content)
                if not piece.file.check_block(index, content):
                    where = f"block {index} (from byte {index * block_bytes})"
                    problems.append(f"{name}: {where} has another checksum than was committed")
            # A checkpoint is larger than memory: leave the room to what training reads and writes.
            os.posix_fadvise(stream.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        problems.append(f"{name}: {error.strerror}")
    return count, problems


def _tell(verdict: Verdict, marker: Marker, *, sampled: bool) -> None:
    for problem in verdict.problems:
        print(problem)
    if verdict.problems:
        count = len(verdict.problems)
        print(f"step {verdict.step}: DAMAGED, {count} problem{'s' if count > 1 else ''}", flush=True)
        return
    how = f"{size_text(verdict.bytes)} of {size_text(marker.bytes)} verified" if sampled else size_text(marker.bytes)
    print(f"step {verdict.step}: whole, {len(marker.files)} files, {how}", flush=True)
