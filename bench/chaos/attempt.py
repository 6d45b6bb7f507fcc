"""One attempt of a run: two ranks as `python -m trainer`, their writers, and what their event logs say."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.processes import Child, Process, Zygote, children
from bench.demo import ROOT
from holdfast import launch
from holdfast.config import RunConfig, names
from holdfast.goodput.events import segment_name, segment_of

RANKS = 2
EMBRYOS = 3
"""Writers that a rank can start without importing torch again: the first, and two after kills. Then the slow way."""
GONE_LIMIT_S = 10.0
"""How long what a killed rank leaves behind may take to end by itself."""


@dataclass(frozen=True)
class Place:
    """Where a run lives: its run directory below the storage, its config, its logs, and its sockets' folder."""

    storage: Path
    run_dir: Path
    config_file: Path
    logs: Path
    scratch: Path


class Attempt:
    """Both ranks of one generation and cycle, from their start on."""

    def __init__(self, zygote: Zygote, config: RunConfig, place: Place, generation: int, cycle: int) -> None:
        self.generation = generation
        self.cycle = cycle
        self.since = time.monotonic()
        self._place = place
        self._logs = [EventTail(place.run_dir / names.EVENTS) for _ in range(RANKS)]
        port = free_port()
        self.ranks: list[Process] = []
        for rank in range(RANKS):
            scratch = place.scratch / f"g{generation}-c{cycle}-{rank}"
            scratch.mkdir(parents=True, exist_ok=True)
            process = zygote.start(
                "trainer",
                ["--config", str(place.config_file), "--run-dir", str(place.run_dir)],
                _environment(config, place, rank, generation, cycle, port, scratch),
                scratch,
                place.logs / f"rank-{rank}.log",
                embryos=EMBRYOS,
            )
            self.ranks.append(process)
            self._logs[rank].pid = process.pid

    def __str__(self) -> str:
        return f"g{self.generation}-c{self.cycle}-r0"

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Everything that the rank's event log says by now."""
        return self._logs[rank].read()

    def codes(self) -> list[int | None]:
        """Exit code of each rank, None while it runs."""
        return [rank.code() for rank in self.ranks]

    def below(self, rank: int) -> list[Child]:
        """The rank's live children: writers, embryos, multiprocessing's own."""
        process = self.ranks[rank]
        return children(process.pid) if process.code() is None else []

    def writers(self, rank: int) -> list[Child]:
        """The rank's live writer processes."""
        return [child for child in self.below(rank) if child.role == "writer"]

    def restored(self) -> set[int]:
        """The step from which this attempt went on (0: a fresh start), as each rank says that knows it by now."""
        return {step for rank in range(RANKS) if (step := _start(self.events(rank))) is not None}

    def stacks(self) -> None:
        """Write the stacks of all threads of ranks and writers into their logs."""
        import signal

        for rank, process in enumerate(self.ranks):
            for child in self.below(rank):
                if child.role == "writer" and _prints_stacks(child.pid):
                    child.kill(signal.SIGUSR1)
            process.kill(signal.SIGUSR1)
        time.sleep(1.0)

    def end(self, known: Sequence[Child] = ()) -> list[str]:
        """Kill the ranks that are left; what they leave behind must end by itself. Returns what did not.

        known: children of ranks that were killed before.
        """
        everyone = {child.pid: child for rank in range(RANKS) for child in self.below(rank)}
        everyone |= {child.pid: child for child in known}
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait(GONE_LIMIT_S)
        late = self.gone(list(everyone.values()))
        for rank in range(RANKS):
            shutil.rmtree(self._place.scratch / f"g{self.generation}-c{self.cycle}-{rank}", ignore_errors=True)
        return late

    @staticmethod
    def gone(known: Sequence[Child]) -> list[str]:
        """Wait until these have ended; kills, and returns in words, those that have not."""
        deadline = time.monotonic() + GONE_LIMIT_S
        while any(child.lives for child in known) and time.monotonic() < deadline:
            time.sleep(0.005)
        late = [child for child in known if child.lives]
        for child in late:
            child.kill()
        return [f"{child.role} {child.pid} outlived its rank by {GONE_LIMIT_S:g} s" for child in late]


class EventTail:
    """The event log of one process, read further at each look: all of its segments, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.pid: int | None = None
        self._folder = folder
        self._first: str | None = None
        self._segment = 0
        self._offset = 0
        self._events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All events so far; a torn last line is not one."""
        if self._first is None:
            found = sorted(path.name for path in self._folder.glob(f"rank-*.{self.pid}.*.jsonl"))
            if not found:
                return []
            self._first = segment_of(found[0])[0]
        # Looked for before this one is read: a segment that has a successor is never written again.
        while (self._folder / segment_name(self._first, self._segment + 1)).exists():
            self._read_on()
            self._segment, self._offset = self._segment + 1, 0
        self._read_on()
        return self._events

    def _read_on(self) -> None:
        assert self._first is not None
        with open(self._folder / segment_name(self._first, self._segment), "rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole, newline, _ = text.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        self._events += [json.loads(line) for line in whole.splitlines() if line]


def _start(events: Sequence[dict[str, Any]]) -> int | None:
    for event in events:
        if event["name"] == "restore":
            return int(event["step"])
        if event["name"] == "step":
            return int(event["step"]) - 1  # the first that it made: it had restored nothing
    return None


def _environment(
    config: RunConfig, place: Place, rank: int, generation: int, cycle: int, port: int, scratch: Path
) -> dict[str, str]:
    """What the pod's manifest, its supervisor and torchrun would set."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}
    for variable in launch.pod_environment(config, "chaos", "worker"):
        if variable.value is not None:
            value = variable.value.replace(names.SCRATCH_MOUNT, str(scratch)).replace("eth0", "lo")
            environment[variable.name] = value.replace(config.storage.mount_path, str(place.storage))
    environment.update(launch.rank_environment(config, generation=generation, token="chaos"))
    environment.update(_from_torchrun(rank, cycle, port))
    environment.update({names.ENV_POD: f"chaos-{generation}-{rank}", names.ENV_NODE: f"node-{rank}"})
    return environment


def _from_torchrun(rank: int, cycle: int, port: int) -> Mapping[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(cycle),
    }


def _prints_stacks(pid: int) -> bool:
    """Whether SIGUSR1 makes the process print its stacks; a spawned one that is no embryo would die of it."""
    return Path(f"/proc/{pid}/comm").read_text().startswith("hf-")


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
