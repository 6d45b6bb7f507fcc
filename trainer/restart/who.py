"""Which rank a process is, told to its own pod: the launcher gives ranks anew at each cycle.

A file in the pod's scratch folder per local rank, written when the process starts. The supervisor reads it to name the
rank whose process died, and the rank whose output it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.config import names
from holdfast.run_directory import read_json, write_atomically
from trainer.runtime import Identity


@dataclass(frozen=True)
class Who:
    """The newest process of a local rank. events: its event log."""

    rank: int
    local_rank: int
    generation: int
    cycle: int
    events: str

    @property
    def cycle_name(self) -> str:
        """`g1-c0`."""
        return f"g{self.generation}-c{self.cycle}"


def say(environment: Mapping[str, str], identity: Identity, events: Path) -> None:
    """Called by a rank, once, as early as it can. Does nothing outside a pod."""
    scratch = environment.get(names.ENV_SCRATCH)
    if scratch is None:
        return
    who = Who(identity.rank, identity.local_rank, identity.generation, identity.cycle, str(events))
    write_atomically(Path(scratch) / f"{names.WHO_PREFIX}{who.local_rank}.json", json.dumps(asdict(who)))


def of(scratch: Path, local_rank: int) -> Who | None:
    """What the newest process of a local rank has said; None if it has not."""
    record = read_json(scratch / f"{names.WHO_PREFIX}{local_rank}.json")
    try:
        return Who(**record) if record else None
    except TypeError:
        return None
