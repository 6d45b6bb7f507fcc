"""The driver's end of the zygote, and the processes below the ranks. Whatever is signalled here was started here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.zygote import EMBRYO, SPAWNED, WRITER
from bench.demo import ROOT

PRELOAD = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.nn.functional",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "trainer.checkpoint.compare",
    "trainer.checkpoint.persist",
    "trainer.data",
    "trainer.model",
    "trainer.optimizer",
    "trainer.restart.in_process",
    "trainer.train",
)
"""What a rank, a writer and the comparison import. A name that is missing here costs time only."""
START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 20.0


class Zygote:
    """A process that forks others (zygote.py). Use as a context manager: what it started ends with it."""

    def __init__(self, log: Path, modules: Sequence[str] = PRELOAD) -> None:
        """modules: what it imports before it forks."""
        self._log = log
        self._modules = modules
        self._codes: dict[int, int] = {}

    def __enter__(self) -> Zygote:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "bench.chaos.zygote", str(theirs.fileno()), *self._modules]
        # One thread per library: a second one would not be there after a fork.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs, open(self._log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **single, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the driver's
            )
        self._socket = ours
        self._answers = ours.makefile("r")
        try:
            self._answer(START_LIMIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        embryos: int = 0,
    ) -> Process:
        """`python -m module arguments` in `folder`, its output appended to `log`."""
        pid = self._ask(
            module=module,
            arguments=list(arguments),
            environment=dict(environment),
            folder=str(folder),
            log=str(log),
            embryos=embryos,
        )["pid"]
        return Process(int(pid), self)

    def code(self, pid: int) -> int | None:
        """Exit code of a process that it started (negative: signal); None while it runs."""
        if pid not in self._codes:
            self._codes.update({int(key): value for key, value in self._ask()["ended"].items()})
        return self._codes.get(pid)

    def _ask(self, **order: Any) -> dict[str, Any]:
        self._socket.settimeout(ANSWER_LIMIT_S)
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        return self._answer(ANSWER_LIMIT_S)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        self._socket.settimeout(limit_s)
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the process that starts ranks has ended; its output is in {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Process:
    """One that the zygote started."""

    pid: int
    _zygote: Zygote

    def code(self) -> int | None:
        """Exit code (negative: signal), None while it runs."""
        return self._zygote.code(self.pid)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, None if it still runs after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while (code := self.code()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it unless it has ended."""
        if self.code() is None:
            os.kill(self.pid, number)


class Child:
    """A process below a rank, held by a pidfd: the number cannot become another process's."""

    def __init__(self, pid: int, role: str) -> None:
        """role: writer, embryo, tracker (multiprocessing's own) or other. ProcessLookupError if there is none."""
        self.pid = pid
        self.role = role
        self._descriptor = os.pidfd_open(pid)

    @property
    def lives(self) -> bool:
        """Whether it still runs; a zombie does not."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)


def children(parent: int) -> list[Child]:
    """Live children of a process."""
    found = []
    for pid in _child_pids(parent):
        with contextlib.suppress(OSError):
            child = Child(pid, _role(pid))
            if _parent(pid) == parent:
                found.append(child)
    return found


def _child_pids(parent: int) -> list[int]:
    """Those that any thread of the process has begun."""
    pids: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(word) for word in task.read_text().split()]
    return pids


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _role(pid: int) -> str:
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if name == EMBRYO:
        return "embryo"
    words = Path(f"/proc/{pid}/cmdline").read_text()
    if name == WRITER or SPAWNED in words.split("\0"):
        return "writer"
    return "tracker" if "resource_tracker" in words else "other"
