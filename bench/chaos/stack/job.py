"""One job as a process of its own, `holdfast run`, with an end: its own, or ours when it hangs."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.demo import ROOT
from holdfast.config import RunConfig, dump
from holdfast.local.processes import processes_with_token
from holdfast.local.shim import die_with_parent, kill_all
from holdfast.run_directory import read_json

POLL_S = 0.1
END_LIMIT_S = 30.0
"""From SIGTERM to the end of a job that is told to end: its pods' grace period of 10 s, and the runner's own."""
GONE_LIMIT_S = 10.0
LAST_LINES = 40


class Interrupted(Exception):
    """Somebody asked the campaign to end; the job says nothing."""


@dataclass
class Ran:
    """How a job ended. code: of `holdfast run`; None: it did not end within its limit and was killed.

    left: what was still alive when `holdfast run` had ended, in words. hung: if it hung, who was there and what they
    waited for, and its last lines.
    """

    out: Path
    code: int | None
    seconds: float
    left: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """The run directory, which is there once the job has begun."""
        return self.out / "run"

    @property
    def output(self) -> Path:
        """What `holdfast run` has printed."""
        return _output(self.out)


def run_job(config: RunConfig, out: Path, limit_s: float, stopping: threading.Event) -> Ran:
    """Run the job in the folder `out`, which must not exist. Raises Interrupted once `stopping` is set; in any case no
    process of the job is alive afterwards."""
    out.parent.mkdir(parents=True, exist_ok=True)
    profile = out.with_name(f"{out.name}.yaml")
    profile.write_text(dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "holdfast", "run", "--profile", str(profile), "--out", str(out)]
    return execute(command, out, limit_s, stopping)


def execute(command: Sequence[str], out: Path, limit_s: float, stopping: threading.Event) -> Ran:
    """Run a command that keeps a job in `out`. Raises as run_job does."""
    began = time.monotonic()
    with open(_output(out), "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is the campaign's
            preexec_fn=die_with_parent,
        )
    ran = Ran(out, None, 0.0)
    try:
        ran.code = _wait(process, began + limit_s, stopping)
        if ran.code is None:
            ran.hung = [*witnesses(_token(out)), *_last_lines(_output(out))]
    finally:
        ran.seconds = round(time.monotonic() - began, 2)
        if process.poll() is None:
            _end(process)
        ran.left = _end_what_is_left(_token(out), at_once=ran.code is not None)
    return ran


def _output(out: Path) -> Path:
    return out.with_name(f"{out.name}.txt")


def _token(out: Path) -> str:
    return str((read_json(out / "run.lock") or {}).get("token", ""))


def _wait(process: subprocess.Popen[bytes], deadline: float, stopping: threading.Event) -> int | None:
    while time.monotonic() < deadline:
        if stopping.is_set():
            raise Interrupted
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL: the shims end their pods with the runner, whatever ended it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_LIMIT_S)


def _end_what_is_left(token: str, at_once: bool) -> list[str]:
    """Processes of the job that are alive although it has ended, in words; they are killed.

    at_once: the job ended by itself, which promises that none is left. Else its shims have a moment.
    """
    if not token:
        return []
    deadline = time.monotonic() + (0.0 if at_once else GONE_LIMIT_S)
    while (left := processes_with_token(token)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    words = witnesses(token)
    deadline = time.monotonic() + GONE_LIMIT_S
    while (still := processes_with_token(token)) and time.monotonic() < deadline:
        kill_all(still)
        time.sleep(POLL_S)
    return words if left else []


def witnesses(token: str) -> list[str]:
    """Each live process of a job: pid, state, what it waits for in the kernel, command line."""
    found = []
    for pid in processes_with_token(token) if token else ():
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            command = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = place.joinpath("stat").read_text().rpartition(")")[2].split()[0]
            found.append(f"process {pid} {state} {_kernel_wait(place)} {command[:160].strip()}")
    return found


def _kernel_wait(place: Path) -> str:
    try:
        return place.joinpath("wchan").read_text() or "-"
    except OSError:
        return "-"


def _last_lines(path: Path) -> Sequence[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
