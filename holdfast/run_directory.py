"""The records of one run directory: who owns it, whether it is complete or must not go on. Used by every room.

All records are written atomically (temporary file, fsync, rename or link) and read by content only: no modification
times, no directory order, nothing that Lustre does not promise.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.config import names
from holdfast.process_identity import boot_id, pid_namespace, pid_started


class StaleGeneration(Exception):
    """This process belongs to an older generation of the run; it must change nothing and end with 75."""


class RunIsOwned(Exception):
    """Another live process owns the run directory."""


@dataclass(frozen=True)
class Terminal:
    """Why the run must not be started again. `code` is 78 (bad input) or 93 (it would fail again)."""

    code: int
    reason: str
    rank: int | None = None
    step: int | None = None
    attempt: str | None = None


def terminal_of(record: dict[str, Any] | None) -> Terminal | None:
    """The Terminal in a JSON object. One with another code than ours ends the run too, as one that has given up."""
    if record is None:
        return None
    known = {key: record.get(key) for key in ("rank", "step", "attempt")}
    code = names.EXIT_CONFIG if record.get("code") == names.EXIT_CONFIG else names.EXIT_GIVE_UP
    return Terminal(code=code, reason=str(record.get("reason")), **known)


@dataclass(frozen=True)
class Owner:
    """The generation that owns the run directory, and the control process that took it."""

    generation: int
    nodes: int
    token: str
    job: str
    jobset_attempt: int
    host: str
    pod: str
    pid: int
    pid_namespace: str
    pid_started: str
    boot: str
    since: float
    """Wall-clock seconds; for people only."""
    incarnation: int = 0
    """The generation in which this job was first started; restarts of the same JobSet keep it, a new start does not."""


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: a reader, also after a crash, sees the old or the new content, never a mixture."""
    temporary = _written_temporary(path, text)
    temporary.rename(path)
    sync_folder(path.parent)


def write_once(path: Path, text: str) -> bool:
    """Write `path` unless it exists. True if this call wrote it; the first of several writers wins."""
    temporary = _written_temporary(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return True


def _written_temporary(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None if it is missing or not one."""
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


class RunDirectory:
    """Paths and records below one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / names.CHECKPOINTS
        self.events = path / names.EVENTS
        self.attempts = path / names.ATTEMPTS
        self.faults = path / names.FAULTS
        self._generations = path / names.GENERATIONS

    # --- the two records that decide exit codes ---

    def complete(self) -> dict[str, Any] | None:
        """The COMPLETE record, or None."""
        return read_json(self.path / names.COMPLETE)

    def write_complete(self, **record: Any) -> None:
        """Say that the final step is committed."""
        write_once(self.path / names.COMPLETE, json.dumps(record))

    def terminal(self) -> Terminal | None:
        """The TERMINAL record, or None."""
        return terminal_of(read_json(self.path / names.TERMINAL))

    def write_terminal(self, terminal: Terminal, generation: int | None = None) -> bool:
        """Say that a restart cannot help. False if another record was first. Raises StaleGeneration."""
        if generation is not None:
            self.require_generation(generation)
        return write_once(self.path / names.TERMINAL, json.dumps(asdict(terminal), indent=1))

    # --- one owner ---

    def owner(self) -> Owner | None:
        """The owner record, or None. Raises OSError if it is there and cannot be read: then nobody knows whose the run
        is, which is not the same as nobody's."""
        path = self.path / names.GENERATION
        try:
            return Owner(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError):
            return None  # not a record of ours; a write never leaves half of one

    def require_generation(self, generation: int) -> None:
        """Raise StaleGeneration unless `generation` owns the run directory."""
        owner = self.owner()
        if owner is None or owner.generation != generation:
            newer = "nobody" if owner is None else f"generation {owner.generation} (pod {owner.pod}, host {owner.host})"
            raise StaleGeneration(f"{self.path}: generation {generation} no longer owns this run; {newer} does")

    def beat(self, generation: int, count: int) -> None:
        """Renew the lease of `generation`."""
        write_atomically(self._generations / f"{generation:08d}.beat", str(count))

    def beats(self, generation: int) -> str:
        """The lease counter of `generation`; it changes while its owner lives."""
        try:
            return (self._generations / f"{generation:08d}.beat").read_text()
        except OSError:
            return ""

    def release(self, generation: int) -> None:
        """Say that the owner of `generation` ended in order, so that the next need not wait for the lease."""
        write_once(self._generations / f"{generation:08d}.end", "")

    def ask_to_leave(self, generation: int, why: str) -> None:
        """Ask the workers of `generation` to save and leave, since its control pod goes."""
        write_once(self._generations / f"{generation:08d}.leave", why)

    def asked_to_leave(self, generation: int) -> bool:
        """Whether the workers of `generation` were asked to leave."""
        return (self._generations / f"{generation:08d}.leave").exists()

    def ask_to_move_on(self, generation: int, why: str) -> None:
        """Ask the workers of `generation` to save and to wait for the next one, in the same pods."""
        write_once(self._generations / f"{generation:08d}.next", why)

    def asked_to_move_on(self, generation: int) -> str | None:
        """Why the workers of `generation` were asked to wait for the next one; None if they were not."""
        try:
            return (self._generations / f"{generation:08d}.next").read_text()
        except OSError:
            return None

    def next_generation(self, owner: Owner, nodes: int, lease_s: float) -> Owner:
        """The same owner's next generation, with so many nodes. Everything of the old one is stale from here on.

        Raises StaleGeneration if `owner` no longer owns the run, RunIsOwned if another takes it at this moment.
        """
        self.require_generation(owner.generation)
        generation = self._claim(owner.generation, lease_s)
        following = replace(owner, generation=generation, nodes=nodes, token=os.urandom(8).hex(), since=time.time())
        self._write_owner(following)
        return following

    def take(self, *, nodes: int, job: str, jobset_attempt: int, pod: str, lease_s: float) -> Owner:
        """Become the owner with the next generation number. Takes up to `lease_s` if the former owner may be alive.

        Raises RunIsOwned, naming host, pid and age of a live owner.
        """
        self._generations.mkdir(parents=True, exist_ok=True)
        current = self.owner()
        if current is not None:
            self._require_dead(current, job, jobset_attempt, lease_s)
        generation = self._claim(0 if current is None else current.generation, lease_s)
        continues = current is not None and current.job == job and jobset_attempt > current.jobset_attempt
        owner = Owner(
            generation=generation,
            nodes=nodes,
            token=os.urandom(8).hex(),
            job=job,
            jobset_attempt=jobset_attempt,
            host=os.uname().nodename,
            pod=pod,
            pid=os.getpid(),
            pid_namespace=pid_namespace(),
            pid_started=pid_started(os.getpid()),
            boot=boot_id(),
            since=time.time(),
            incarnation=current.incarnation if current is not None and continues else generation,
        )
        self._write_owner(owner)
        return owner

    def _write_owner(self, owner: Owner) -> None:
        write_atomically(self.path / names.GENERATION, json.dumps(asdict(owner), indent=1))
        self.beat(owner.generation, 0)

    def _claim(self, above: int, lease_s: float) -> int:
        """Reserve a generation number that nobody else has. A claim left by a claimant that died is stepped over."""
        generation = above + 1
        while not write_once(self._generations / f"{generation:08d}.claim", ""):
            if _wait(partial(self._is_taken, generation), lease_s):
                owner = self.owner()
                raise RunIsOwned(
                    f"{self.path}: generation {generation} was taken at the same moment by {owner and owner.pod}"
                )
            generation += 1
        return generation

    def _is_taken(self, generation: int) -> bool:
        owner = self.owner()
        return owner is not None and owner.generation >= generation

    def owner_lives(self, owner: Owner, lease_s: float) -> bool:
        """Whether the process that took the run lives. Takes up to `lease_s` if that cannot be seen from here."""
        if (self._generations / f"{owner.generation:08d}.end").exists():
            return False
        if owner.boot == boot_id() and owner.pid_namespace == pid_namespace():
            return pid_started(owner.pid) == owner.pid_started
        before = self.beats(owner.generation)
        return _wait(lambda: self.beats(owner.generation) != before, lease_s)

    def _require_dead(self, owner: Owner, job: str, jobset_attempt: int, lease_s: float) -> None:
        if owner.job == job and jobset_attempt > owner.jobset_attempt:
            return  # the JobSet replaced it; if it lives on, cut off, the generation check keeps it from writing
        if self.owner_lives(owner, lease_s):
            raise RunIsOwned(self._owned_message(owner))

    def _owned_message(self, owner: Owner) -> str:
        age = max(0, int(time.time() - owner.since))
        return (
            f"{self.path}: the run is owned by a live process: generation {owner.generation}, host {owner.host}, "
            f"pod {owner.pod}, pid {owner.pid}, for {age} s. End it first, or use another run directory."
        )


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll until the condition holds or the limit is over; the condition's last value."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(min(0.2, limit_s / 10))
    return True
