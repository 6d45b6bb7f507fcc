"""A template and doors for tests: the real ones, but the template imports no torch and forks into standby_rank.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.trainer.fake_pod import runs
from trainer.standby.protocol import ENV_PARENT, ENV_SOCKET, ENV_WAIT_S

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0
T = TypeVar("T")

TEMPLATE = """
import os, sys, threading, time
from pathlib import Path
import numpy
from trainer.standby import become, template
from trainer.standby.protocol import ENV_PARENT, ENV_SOCKET
from trainer.standby.template import Template, listen
become.die_with(int(os.environ[ENV_PARENT]))
listener = listen(Path(os.environ[ENV_SOCKET]))
if "threads" in sys.argv:
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
if "unarmed" in sys.argv:
    def refuse(leash, pid):
        raise OSError("not here")
    vars(template)["_kill_on_hang_up"] = refuse
if "ends" in sys.argv:
    time.sleep(0.5)
    sys.exit(1)
Template(listener, "tests.trainer.standby_rank", (Path(sys.argv[1]),)).serve()
"""
SUPERVISOR = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, %r: str(os.getpid())}, start_new_session=True)
time.sleep(300)
"""


def until(condition: Callable[[], T | None]) -> T:
    """Poll until the condition gives something true."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


class Standby:
    """A supervisor that does nothing, its template, and the doors that the test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = folder / "sources"
        self.sources.mkdir()
        (self.sources / "code.py").write_text("1")
        self._socket = folder / "s"
        # Numpy's own threads, which the real template holds back as well.
        self.environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", ENV_SOCKET: str(self._socket), ENV_WAIT_S: "20"}
        self._started: list[subprocess.Popen[str]] = []
        self.supervisor: subprocess.Popen[str] | None = None

    def start(self, *words: str) -> int:
        """Start a template; its process id once it listens."""
        command = [sys.executable, "-c", SUPERVISOR % ENV_PARENT, "-u", "-c", TEMPLATE, str(self.sources), *words]
        self.supervisor = self._popen(command, self.environment)
        until(self._socket.exists)
        (template,) = children(self.supervisor.pid)
        return template

    def door(self, *words: str, stdin: str | None = None, **environment: str) -> subprocess.Popen[str]:
        """Start a door with these arguments. stdin: text for it."""
        command = [sys.executable, "-u", "-m", "trainer.standby.door", *words]
        door = self._popen(command, {**self.environment, **environment}, subprocess.PIPE if stdin is not None else None)
        if stdin is not None:
            assert door.stdin is not None
            door.stdin.write(stdin)
            door.stdin.flush()
        return door

    def direct(self, *words: str, stdin: str) -> subprocess.CompletedProcess[str]:
        """The same in a new interpreter."""
        command = [sys.executable, "-u", "-m", "tests.trainer.standby_rank", *words]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            start_new_session=True,
            check=False,
        )

    def stuck(self, name: str = "stuck", **environment: str) -> tuple[subprocess.Popen[str], int]:
        """A door and the process id of its rank, which holds the GIL for ever."""
        mark = self.folder / name
        door = self.door("stuck", str(mark), **environment)
        return door, int(until(lambda: mark.read_text() if mark.exists() else ""))

    def close(self) -> None:
        """Kill what is left."""
        for process in self._started:
            process.kill()
            process.communicate(timeout=LIMIT_S)

    def _popen(
        self, command: list[str], environment: dict[str, str], stdin: int | None = None
    ) -> subprocess.Popen[str]:
        output = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=stdin, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        self._started.append(process)
        return process


def output_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output, once it has ended. A rank that lives on would hold the pipe open: this would fail."""
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


def children(pid: int) -> list[int]:
    """Live children of a process."""
    task = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in task.read_text().split() if runs(int(word))]


def gone(*pids: int) -> bool:
    """Whether none of them runs any more."""
    return not any(map(runs, pids))
