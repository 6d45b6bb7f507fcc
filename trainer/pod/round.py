"""Without layer 2: a launcher whose peers are gone must not stay up with a rank that hangs.

torchrun with a static rendezvous starts ranks when the launchers of all nodes have met, and restarts none. When one
launcher ends, its pod is made anew, and the new launcher waits for the others. Most of those end by themselves: their
ranks lose a connection. A rank that hangs loses nothing, and its launcher would keep everybody waiting until some
time-out. So each supervisor says in the run directory which launcher runs on its node, and that it has ended; whoever
has ranks and sees another launcher than the one it met, or an end, ends too. Nothing is lost by that: without the other
node's ranks no step can be finished and no save committed.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from holdfast.config import names
from holdfast.run_directory import Owner, read_json, write_atomically
from trainer.child import Child
from trainer.pod.pod import Pod

LOOK_S = 1.0
"""How often the peers are looked at: one small file for each. Slower on many nodes, see READS_PER_S."""
READS_PER_S = 32
"""So many files per second and pod at most, of a file system that all pods share."""


class Round:
    """One per launcher of a worker pod. `began` before it starts, `look` while it runs, `ended` when it has ended."""

    def __init__(self, pod: Pod, owner: Owner) -> None:
        self._folder = pod.run.path / names.GENERATIONS
        self._generation = owner.generation
        self._me = int(pod.environment[names.ENV_GROUP_RANK])
        self._peers = [index for index in range(owner.nodes) if index != self._me]
        self._token = os.urandom(8).hex()
        self._pause_s = max(LOOK_S, len(self._peers) / READS_PER_S)
        self._next_look = 0.0
        self._code: int | None = None
        self._met: dict[int, Any] = {}
        """Peer -> its launcher when it was read first while there were ranks here."""
        self.broken = ""
        """Why this launcher cannot finish anything; empty as long as it can."""

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._generation:08d}.launcher-{index}.json"

    def began(self) -> None:
        """Say that this launcher runs."""
        self._say(broken=False)

    def ended(self) -> None:
        """Say that it does not any more. One whose ranks have all finished breaks nothing: rank 0 may still commit."""
        self._say(broken=self._code != 0)

    def _say(self, broken: bool) -> None:
        try:
            write_atomically(self._path(self._me), json.dumps({"launcher": self._token, "broken": broken}))
        except OSError as error:  # others then wait for their own time-outs
            logging.warning("other nodes are not told of this launcher: %s", error)

    def look(self, child: Child) -> None:
        """Kill the launcher if it has ranks whose peers are gone. Call often, and once when it has ended."""
        self._code, now = child.code(), time.monotonic()
        if self._code is not None or self.broken or now < self._next_look:
            return
        self._next_look = now + self._pause_s
        if not child.ranks():
            return
        # What cannot be read now says nothing: a file system that hiccups is no reason to end a pod.
        said = {index: record for index in self._peers if (record := read_json(self._path(index))) is not None}
        for index, record in said.items():
            self._met.setdefault(index, record["launcher"])
        gone = [index for index, one in said.items() if one["broken"] or one["launcher"] != self._met[index]]
        if gone:
            nodes = ", ".join(map(str, gone))
            self.broken = f"the launchers of nodes {nodes} have ended, and no step can be finished without their ranks"
            logging.error("%s; ending this one", self.broken)
            child.kill_all()
