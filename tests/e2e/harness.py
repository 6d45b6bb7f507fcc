"""Whole runs for tests: `holdfast run` as a process of its own, what it left behind, and who its processes are."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.checkpoint_folder import damage, read_marker
from holdfast.config import names
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.reader import read_run
from holdfast.goodput.timeline import Event
from holdfast.local.processes import TOKEN_VARIABLE, processes_with_token
from holdfast.local.shim import kill_all
from holdfast.run_directory import read_json

ROOT = Path(__file__).parents[2]
LIMIT_S = 150.0
"""Longest run of this folder on two busy cores, with a reserve; no test waits longer for anything."""
T = TypeVar("T")


def until(what: str, condition: Callable[[], T | None], limit_s: float = LIMIT_S, pause_s: float = 0.05) -> T:
    """Poll until the condition gives something true; fail with `what` after the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(pause_s)
    return value


class RunFiles:
    """What a run leaves in its run directory."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def events(self, *wanted: str, source: str = "rank") -> list[Event]:
        """Events of these names, in order of time."""
        return read_run(self.run_dir).named(*wanted, source=source)

    def finished(self, generation: int | None = None) -> int:
        """The highest step that some rank has finished; 0 if none."""
        steps = [
            event.finished_step or 0
            for event in self.events("step")
            if generation is None or event.process.generation == generation
        ]
        return max(steps, default=0)

    def committed(self) -> list[int]:
        """Committed steps, ascending. A folder that prune is deleting has lost its marker first."""
        steps = []
        for marker in (self.run_dir / names.CHECKPOINTS).glob(f"{names.STEP_PREFIX}*/{names.COMMITTED}"):
            step = names.step_of(marker.parent.name)
            if step is not None and read_json(marker) is not None:
                steps.append(step)
        return sorted(steps)

    def marker(self, step: int) -> dict[str, Any]:
        """COMMITTED.json of a step; empty if there is none."""
        return read_json(self.run_dir / names.CHECKPOINTS / names.step_folder(step) / names.COMMITTED) or {}

    def damage(self, step: int) -> list[str]:
        """Files of a committed step that are not, byte for byte, what was committed."""
        folder = self.run_dir / names.CHECKPOINTS / names.step_folder(step)
        marker = read_marker(folder)
        assert marker is not None, f"{folder}: no marker that can be read"
        return list(damage(folder, marker.files, marker.block_bytes))

    def record(self, name: str) -> dict[str, Any] | None:
        """COMPLETE, TERMINAL.json or generation.json; None if it is not there."""
        return read_json(self.run_dir / name)

    def pod_exits(self) -> dict[str, int]:
        """Exit code of each pod that has ended."""
        return {event.text("pod"): event.whole("code") or 0 for event in self.events("pod_exit", source="runner")}

    def ledger(self) -> Ledger:
        """Where the time went."""
        return account(read_run(self.run_dir))


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Newest committed checkpoints of two run directories, every tensor, bit for bit."""
    command = [sys.executable, "-m", "trainer.checkpoint.compare", str(first), str(second)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@dataclass(frozen=True)
class Member:
    """One process of a run. parent: its parent's pid when it was looked at."""

    pid: int
    parent: int
    words: tuple[str, ...]

    @property
    def role(self) -> str:
        """shim, supervisor, launcher, rank, or other (writers and their helpers)."""
        if len(self.words) > 1 and Path(self.words[1]).name in ("ft_launcher", "nvrx-control"):
            return "launcher"
        roles = (("trainer.supervisor", "supervisor"), ("trainer.restart.launcher", "launcher"), ("trainer", "rank"))
        for module, role in roles:
            if self.words[1:3] == ("-m", module) or self.words[1:4] == ("-u", "-m", module):
                return role
        return "shim" if any(word.endswith("shim.py") for word in self.words) else "other"


def originals(there: Sequence[Member]) -> list[Member]:
    """Without forks that have their parent's command line: rank monitors, and the in-process monitors of ranks."""
    roles = {member.pid: member.role for member in there}
    return [member for member in there if roles.get(member.parent) != member.role]


def members(token: str) -> list[Member]:
    """Live processes whose environment carries the token of a run, or `<token>.<pod>`."""
    exact = "." in token
    found = []
    for pid in _with_exact(token) if exact else processes_with_token(token):
        with contextlib.suppress(OSError):
            words = tuple(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(Member(pid, parent, words))
    return found


def _with_exact(token: str) -> list[int]:
    run, _, pod = token.partition(".")
    wanted = f"{TOKEN_VARIABLE}={run}.{pod}".encode()
    found = []
    for pid in processes_with_token(run):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that still run; a zombie does not."""
    left = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                left.append(pid)
    return left


class Training(RunFiles):
    """`holdfast run` (or resume) in a process of its own. Use as a context manager: nothing of it lives on."""

    def __init__(
        self,
        out: Path,
        *sets: str,
        profile: str = "cpu-test",
        faults: Sequence[dict[str, Any]] = (),
        command: Sequence[str] = (),
        open_files: int | None = None,
    ) -> None:
        """sets: key=value overrides. command: other words after `holdfast` than `run` with the above. open_files: soft
        limit of the shell that it is started from."""
        super().__init__(out / "run")
        self.out = out
        words = list(command)
        if not words:
            words = ["run", "--profile", profile, "--out", str(out)]
            words += [word for key_value in sets for word in ("--set", key_value)]
            if faults:
                file = out.with_name(f"{out.name}.faults.yaml")
                file.write_text(json.dumps({"faults": list(faults)}))
                words += ["--faults", str(file)]
        self._output = out.with_name(f"{out.name}.{time.monotonic_ns()}.txt")
        with open(self._output, "wb") as output:
            shell = ["sh", "-c", f'ulimit -Sn {open_files}; exec "$@"', "sh"] if open_files else []
            self._process = subprocess.Popen(
                [*shell, sys.executable, "-m", "holdfast", *words], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        token = self.token
        if token:
            until("no process of the run is left", lambda: not processes_with_token(token), 10)

    @property
    def token(self) -> str:
        """What the environment of every process of the run carries; empty before the run owns its folder."""
        return str((read_json(self.out / "run.lock") or {}).get("token", ""))

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end within {limit_s:g} s:\n{self.output}") from None

    def signal(self, number: signal.Signals) -> None:
        """Signal `holdfast run` itself."""
        self._process.send_signal(number)

    def until(self, what: str, condition: Callable[[], T | None], limit_s: float = LIMIT_S) -> T:
        """Poll as long as the run goes on."""

        def checked() -> T | None:
            value = condition()
            assert value or self._process.poll() is None, f"the run ended before: {what}\n{self.output}"
            return value

        return until(what, checked, limit_s)

    def until_finished(self, step: int, generation: int | None = None) -> None:
        """Wait for the end of a step."""
        self.until(f"step {step} is finished", lambda: self.finished(generation) >= step)

    def pod(self, stem: str) -> str:
        """`<token>.<pod>` of the newest pod whose name contains `stem`, e.g. workers-1, once its supervisor runs."""

        def found() -> str | None:
            created = [event.text("pod") for event in self.events("pod_created", source="runner")]
            names_ = [name for name in created if f"-{stem}-" in name]
            token = f"{self.token}.{names_[-1]}" if names_ else ""
            return token if token and any(member.role == "supervisor" for member in members(token)) else None

        return self.until(f"a pod {stem} with a supervisor", found)

    def process(self, stem: str, role: str) -> int:
        """Pid of a pod's process."""

        def found() -> int | None:
            fitting = [member for member in originals(members(self.pod(stem))) if member.role == role]
            return fitting[0].pid if fitting else None

        return self.until(f"a {role} in pod {stem}", found)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """SIGSTOP the processes for the time of the body, as if their machine hung."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def end_all(token: str) -> None:
    """SIGKILL every process with the token, until there is none."""

    def none_left() -> bool:
        left = processes_with_token(token)
        kill_all(left)
        return not left

    until("no process is left", none_left, 10)
