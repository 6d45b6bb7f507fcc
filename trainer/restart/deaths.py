"""The stop rule for ranks that die without an exception: out of memory, a crash in native code, a hang that is ended.

The worker's supervisor sees the exit code in its launcher's output, finds the step in the rank's event log, and records
both. The same death at the same step on several attempts ends the run, since a restart repeats it.
"""

from __future__ import annotations

import glob
import json
import logging
import queue
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config import names
from holdfast.goodput.events import segment_of
from holdfast.goodput.state import newest_committed
from holdfast.last_failure import how_ended
from holdfast.run_directory import RunDirectory, StaleGeneration, Terminal, read_json, write_atomically
from trainer.restart import who
from trainer.restart.who import Who

FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
"""torch elastic names the first process that failed in a cycle, one line per launcher."""
HANG = re.compile(r"(Section '\w+' has been open|Was out of section) for [\d.]+ seconds")
"""NVRx's rank monitor says so before it kills a rank."""
IN_ORDER = {0, names.EXIT_PREEMPTED, names.EXIT_CONFIG, -signal.SIGTERM}
"""Ends that somebody wanted, or that have a record of their own. SIGTERM is how a launcher stops the others."""
TAIL_BYTES = 1 << 16
"""Of an event log: more than the events of one step."""
POLL_S = 0.02
SETTLE_S = 10.0
"""A pod that ends waits so long for its last record. Without it the pod ends all the same: Kubernetes then starts it
again, and the next death is counted."""


@dataclass(frozen=True)
class Death:
    """How a rank process ended. committed: the newest committed step then; it stands for the place of a death before
    the first step. hang: what the rank monitor said, or empty."""

    cycle: str
    rank: int
    code: int
    step: int | None
    committed: int | None
    hang: str = ""

    @property
    def how(self) -> str:
        """`ended by SIGKILL` or `ended with exit code 7`."""
        return how_ended(self.code)

    @property
    def where(self) -> str:
        """`at step 12`, or what is known before the first step."""
        if self.step is not None:
            return f"at step {self.step}"
        return f"before its first step after step {self.committed or 0}"


@dataclass(frozen=True)
class _Ended:
    """What the launcher said of one rank process."""

    code: int
    hang: str
    one: Who


class Deaths:
    """Reads the launcher's output of one pod, and records what it says about ranks. For one generation.

    Records are synced writes on the shared storage, which may hang. So a thread of its own makes them, and not the one
    that empties the launcher's pipe: behind a full pipe the launcher itself would stand still.
    """

    def __init__(self, run: RunDirectory, scratch: Path, generation: int, same_step_limit: int) -> None:
        self._run = run
        self._scratch = scratch
        self._generation = generation
        self._limit = same_step_limit
        self._hang = ""
        self._ended: queue.Queue[_Ended | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def on_line(self, line: str) -> None:
        """Takes every line that the launcher prints. Never raises and never waits: it runs in the thread that passes
        output on."""
        if hang := HANG.search(line):
            self._hang = hang.group(0)
        failed = FAILED.search(line)
        if failed is None:
            return
        hang_said, self._hang = self._hang, ""
        # Now: the next process of this local rank will say that it is another one. The pod's own folder never hangs.
        code, one = int(failed.group(1)), who.of(self._scratch, int(failed.group(2)))
        if code in IN_ORDER or one is None or one.generation != self._generation:
            return
        self._ended.put(_Ended(code, hang_said, one))
        if self._thread is None:
            self._thread = threading.Thread(target=self._record_all, name="deaths", daemon=True)
            self._thread.start()

    def settle(self, limit_s: float = SETTLE_S) -> bool:
        """Wait until what was read so far is on record; False if the storage takes too long for that."""
        deadline = time.monotonic() + limit_s
        while self._ended.unfinished_tasks:
            if time.monotonic() >= deadline:
                logging.error("a rank's death is not on record after %.0f s; it is not waited for", limit_s)
                return False
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """No more lines come; what was read is still recorded."""
        self._ended.put(None)

    def _record_all(self) -> None:
        while (ended := self._ended.get()) is not None:
            try:
                self._died(ended.code, ended.one, ended.hang)
            except (OSError, StaleGeneration) as error:
                logging.warning("a rank's death could not be recorded: %s", error)
            except Exception:  # whatever it is: if this thread ended, no later death would ever be counted
                logging.exception("a rank's death could not be recorded")
            finally:
                self._ended.task_done()

    def _died(self, code: int, one: Who, hang: str) -> None:
        if code > 0 and any(self._run.attempts.glob(f"{one.cycle_name}-r*.rank{one.rank}.json")):
            return  # it raised, and failures.py counts that
        step = begun_step(Path(one.events))
        death = Death(one.cycle_name, one.rank, code, step, newest_committed(self._run.checkpoints), hang)
        terminal = record(self._run, death, self._generation, self._limit)
        logging.error("rank %d %s %s%s", one.rank, death.how, death.where, f": {hang}" if hang else "")
        if terminal is not None:
            logging.error("%s", terminal.reason)


def record(run: RunDirectory, death: Death, generation: int, limit: int) -> Terminal | None:
    """Record a death; write TERMINAL and return it once `limit` cycles ended alike. Raises StaleGeneration, OSError."""
    run.require_generation(generation)
    path = run.attempts / f"{death.cycle}.death{death.rank}.json"
    write_atomically(path, json.dumps(vars(death), indent=1))
    if death.hang and death.step is None:
        # It hung in start-up or restore: a store, a mount, a peer that did not come. Where is not known, so that it
        # cannot be told from another one, and a restart may well cure it. What bounds it is the number of restarts
        # without a newer commit (recovery.max_restarts_without_progress), each at most a section's limit long.
        return None
    alike = sorted({str(other["cycle"]) for other in _deaths(run) if _key(other) == _key(vars(death))})
    if len(alike) < limit:
        return None
    cause = f"The rank monitor had ended a hang: {death.hang}." if death.hang else _CAUSES.get(death.code, "")
    reason = (
        f"rank {death.rank} {death.how} {death.where} on {len(alike)} attempts ({', '.join(alike)}), without an "
        f"exception. {cause} Its output is in {names.LOGS}/{death.cycle}/rank{death.rank}.log. "
        "A restart would repeat it."
    )
    terminal = Terminal(names.EXIT_GIVE_UP, " ".join(reason.split()), death.rank, death.step, death.cycle)
    run.write_terminal(terminal, generation)
    return terminal


_CAUSES = {
    -signal.SIGKILL: "Most often the kernel's out-of-memory killer: look at the pod's memory limit and the node's log.",
    -signal.SIGSEGV: "A crash in native code.",
    -signal.SIGABRT: "An abort in native code.",
    -signal.SIGBUS: "Memory that a file or /dev/shm no longer backs: look for a full /dev/shm.",
}


def begun_step(events: Path) -> int | None:
    """The step that a rank was in when its event log ended; None if it had finished none in its last attempt.
    events: the log's first segment."""
    finished = None
    stem = events.name.removesuffix(events.suffix)
    later = sorted(events.parent.glob(f"{glob.escape(stem)}.s*{events.suffix}"), key=lambda path: segment_of(path.name))
    for line in [line for path in [events, *later][-2:] for line in _tail(path)]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("name") == "attempt_start":
            finished = None
        elif event.get("name") == "step" and "error" not in event:
            finished = event.get("step")
    return None if not isinstance(finished, int) else finished + 1


def _tail(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().splitlines()
    except OSError:
        return []


def _key(death: dict[str, Any]) -> tuple[Any, ...]:
    """The rank is not in it: whose memory is full first is chance."""
    step = death.get("step")
    if step is not None:
        return death.get("code"), step
    return death.get("code"), None, death.get("committed"), bool(death.get("hang"))


def _deaths(run: RunDirectory) -> list[dict[str, Any]]:
    records = (read_json(path) for path in run.attempts.glob("*.death*.json"))
    return [found for found in records if found is not None and "cycle" in found]
