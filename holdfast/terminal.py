"""How a run that has ended for good is allowed to go on: its TERMINAL record is set aside, by somebody who names it.

The name is an id made of the record's content. A config that still names an old record cannot clear a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from itertools import count
from pathlib import Path

from holdfast.config import names
from holdfast.run_directory import RunDirectory, Terminal, read_json, terminal_of

COUNTED = ("*.rank*.json", "*.death*.json", names.BUDGET)
"""In `attempts/`: what the stop rules count. Set aside with the record: the cause is said to be mended."""


def terminal_id(terminal: Terminal) -> str:
    """8 hex digits that name a TERMINAL record; what `resume.clear_terminal` must be to clear it."""
    return hashlib.sha256(json.dumps(asdict(terminal)).encode()).hexdigest()[:8]


def was_set_aside(run: RunDirectory, wanted: str) -> bool:
    """Whether a record with this id has been set aside before."""
    stem, _, suffix = names.TERMINAL.rpartition(".")
    found = (terminal_of(read_json(path)) for path in run.path.glob(f"{stem}.*.{suffix}"))
    return any(terminal is not None and terminal_id(terminal) == wanted for terminal in found)


def way_on(terminal: Terminal) -> str:
    """What to do about a record, for a machine at hand and for a cluster."""
    return (
        "Mend the cause, then `holdfast resume DIR --clear-terminal`, or on a cluster a new synthesis with "
        f"resume.clear_terminal={terminal_id(terminal)}."
    )


def record_named_in(text: str) -> str | None:
    """The id in what `way_on` has said, wherever that stands; None if it is not in the text."""
    found = re.search(r"resume\.clear_terminal=([0-9a-f]{8})", text)
    return None if found is None else found[1]


def set_aside(run: RunDirectory) -> Path | None:
    """Rename TERMINAL.json to the first free TERMINAL.<n>.json and put what was counted into
    attempts/before-TERMINAL.<n>/. Its new path; None if there is no record. Raises OSError.

    What was counted goes first: a crash in between leaves the record, and the next call does the rest.
    """
    record = run.path / names.TERMINAL
    if run.terminal() is None:
        return None
    stem, _, suffix = names.TERMINAL.rpartition(".")
    free = next(path for n in count(1) if not (path := run.path / f"{stem}.{n}.{suffix}").exists())
    aside = run.attempts / f"before-{free.stem}"
    for pattern in COUNTED:
        for counted in sorted(run.attempts.glob(pattern)):
            aside.mkdir(exist_ok=True)
            counted.rename(aside / counted.name)
    record.rename(free)
    return free
