"""Acknowledgements: `rank-<n>.json`, by which a rank's writer says that its part of a save is durable; and the wait of
rank 0's writer for all of them.

The files are all that the wait trusts: each appears complete or not at all, in a folder that is of one save only. One
listing per look, ever more seldom, so that a shared file system does not notice one waiting process whatever the number
of ranks; what a listing shows anew is read at once, while others still write.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.run_directory import write_atomically

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.25
"""Pause between two listings: it grows by GROWTH from the first to this. With 1000 ranks a listing is some thousand
names."""
GROWTH = 1.5
ATTENTION_S = 0.02
"""A pause is interrupted within so long by whoever calls the wait off. That costs no I/O."""
READERS = 16
"""Files read side by side: each costs a shared file system a few round trips, and hardly a byte."""
NAMED = 8
"""A message names at most so many missing ranks."""


class NotAcknowledged(Exception):
    """Not all ranks' parts became durable in time. The message names the missing ranks."""


class CalledOff(Exception):
    """The wait was called off: a part will never come."""


def file_of(folder: Path, rank: int) -> Path:
    """Where a rank acknowledges its part of the save in `folder`."""
    return folder / f"rank-{rank}.json"


def acknowledge(folder: Path, rank: int, files: list[dict[str, Any]], results: list[list[Any]]) -> None:
    """Say that the part of `rank` is durable: its files, and where DCP has put what. Raises OSError."""
    write_atomically(file_of(folder, rank), json.dumps({"rank": rank, "files": files, "results": results}))


def await_all(folder: Path, world_size: int, deadline: float, called_off: Callable[[], bool]) -> list[dict[str, Any]]:
    """The acknowledgements {rank, files, results} of all ranks, in order, as soon as the last one is there.

    deadline: monotonic seconds. called_off: asked every ATTENTION_S. Raises NotAcknowledged at the deadline, CalledOff,
    and OSError where the storage refuses or the folder is gone.
    """
    missing = {file_of(folder, rank).name: rank for rank in range(world_size)}
    found: dict[int, dict[str, Any]] = {}
    pause = FIRST_PAUSE_S
    with ThreadPoolExecutor(READERS, thread_name_prefix="acknowledgements") as pool:
        while True:
            if called_off():
                raise CalledOff(f"{folder.name}: called off while {_said(missing.values())} had not acknowledged")
            new = {name: missing.pop(name) for name in os.listdir(folder) if name in missing}
            found |= zip(new.values(), pool.map(_read, (folder / name for name in new)), strict=True)
            if not missing:
                return [found[rank] for rank in range(world_size)]
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotAcknowledged(
                    f"{folder.name}: {_said(missing.values())} did not acknowledge within checkpoint.persist_timeout_s"
                )
            _pause(min(pause, left), called_off)
            pause = min(pause * GROWTH, LONGEST_PAUSE_S)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise OSError(f"{path}: it was written as a whole and is no JSON now: {error}") from None
    return content


def _pause(seconds: float, called_off: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not called_off():
        time.sleep(min(left, ATTENTION_S))


def _said(ranks: Iterable[int]) -> str:
    late = sorted(ranks)
    more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
    return f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late[:NAMED]))}{more}"
