"""Leases of readers: who reads a checkpoint says so, and prune leaves that step alone while the reader lives.

One small file per reader below `checkpoints/leases/`. A thread of the reader counts up in it; whoever prunes looks
whether the content changes, by its own monotonic clock. Nobody compares clocks, and no modification time is read.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.config import names

logger = logging.getLogger(__name__)

BEAT_S = 5.0
"""Pause between two beats of a reader."""
DEAD_AFTER_S = 60.0
"""A reader whose counter has not changed for so long is dead: twelve beats, more than a busy file server is late."""
_serial = itertools.count(1)


class Lease:
    """`with Lease(checkpoints, step, who):` no prune removes that step. Take it first, then read the marker.

    checkpoints: the run's checkpoint folder. who: for people who wonder why a step stays. A folder that cannot be
    written (read-only mount, full disk) is no reason not to read: there is a warning then, and no lease.
    """

    def __init__(self, checkpoints: Path, step: int, who: str, beat_s: float = BEAT_S) -> None:
        host, pid = os.uname().nodename, os.getpid()
        self.path = checkpoints / names.LEASES / f"{step}-{host}-{pid}-{next(_serial)}.json"
        self._record: dict[str, Any] = {"step": step, "who": who, "host": host, "pid": pid}
        self._beat_s = beat_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._beat(0)
        except OSError as error:
            logger.warning("%s: no lease (%s); a prune may remove the step while it is read", self.path, error.strerror)
            return self
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self._beat_s)
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            pass  # it beats no more, so that it is removed as a dead one

    def _beat_on(self) -> None:
        for count in itertools.count(1):
            if self._over.wait(self._beat_s):
                return
            try:
                self._beat(count)
            except OSError:
                pass  # the next beat may get through; one in twelve is enough

    def _beat(self, count: int) -> None:
        """Write in place: any change of content counts, so that a torn one is as good. Creates the file again if it was
        removed while this process was stopped."""
        with open(self.path, "w") as file:
            json.dump({**self._record, "count": count}, file)


def held_steps(checkpoints: Path, memory: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> set[int]:
    """Steps that live readers hold. Files of dead ones are removed.

    memory: what this observer saw before: lease name -> (content, since when by `clock`). Pass the same dict each time.
    A lease is alive when it is seen first, and as long as it was seen to change within DEAD_AFTER_S.
    """
    folder = checkpoints / names.LEASES
    there = {path.name: path for path in folder.glob("*.json")}
    for gone in memory.keys() - there.keys():
        del memory[gone]
    held = set()
    for name, path in there.items():
        step, now = name.partition("-")[0], clock()
        if not step.isdigit():
            continue
        content = _content(path)
        if name not in memory or memory[name][0] != content:
            memory[name] = (content, now)
        if now - memory[name][1] > DEAD_AFTER_S:
            path.unlink(missing_ok=True)
            del memory[name]
        else:
            held.add(int(step))
    return held


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
