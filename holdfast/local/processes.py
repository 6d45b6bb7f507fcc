"""The runner's end of a pod's shim: start it, talk to it, learn how it ended. And the search for stray processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.local.shim import descendants, kill_all

SHIM = Path(__file__).with_name("shim.py")
TOKEN_VARIABLE = "HOLDFAST_LOCAL_TOKEN"
"""In the environment of every process of a run. Its value is `<token of the run>.<pod>`."""
KILLED = 137


class PodProcess:
    """The process tree of one pod: a shim and everything below it. Never blocks."""

    def __init__(
        self,
        pod: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        remove: Sequence[Path],
    ) -> None:
        """Start argv in folder; its output is appended to log; the paths in remove go when the tree has gone."""
        self._socket, theirs = socket.socketpair()
        with theirs, open(log, "ab") as output:
            self._shim: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), pod],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,  # a signal to the runner's process group must not reach the pods
            )
        self._mark = f"{TOKEN_VARIABLE}={environment.get(TOKEN_VARIABLE, pod)}".encode()
        self._socket.setblocking(False)
        self._unread = b""
        self.main_pid: int | None = None
        self._code: int | None = None
        self._say({"argv": list(argv), "remove": [str(path) for path in remove]})

    def fileno(self) -> int:
        """For select: readable when the shim has said something or has gone."""
        return self._socket.fileno()

    @property
    def shim_pid(self) -> int:
        """Root of the tree."""
        return self._shim.pid

    def terminate(self) -> None:
        """SIGTERM to the container's main process, as a kubelet does."""
        self._say({"do": "term"})

    def kill(self) -> None:
        """SIGKILL to every process of the pod, grandchildren included."""
        self._say({"do": "kill"})

    def kill_directly(self) -> None:
        """The same without the shim's help, and the shim too: for one that does not answer."""
        kill_all([*descendants(self.shim_pid), self.shim_pid])

    def probe(self, request: int, argv: Sequence[str], timeout_s: float) -> None:
        """Run argv inside the pod; the answer comes as a message {exec: request, code}."""
        self._say({"do": "exec", "id": request, "argv": list(argv), "timeout_s": timeout_s})

    def messages(self) -> list[dict[str, Any]]:
        """What the shim has said since the last call."""
        try:
            received = self._socket.recv(65536)
        except OSError:
            return []
        *lines, self._unread = (self._unread + received).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            self.main_pid = message.get("started", self.main_pid)
            self._code = message.get("exit", self._code)
        return messages

    def exit_code(self) -> int | None:
        """The container's exit code once its whole tree has gone, else None."""
        if self._shim.poll() is None:
            return None
        self.messages()
        if self._code is not None:
            return self._code
        # The shim was itself killed and could not tell. Its children may live, adopted by somebody else.
        left = _processes_with(self._mark)
        kill_all(left)
        return None if left else KILLED

    def close(self) -> None:
        """Release the control socket. A shim that still lives takes this as the runner's death and kills its tree."""
        self._socket.close()

    def wait(self, limit_s: float) -> None:
        """Until the whole tree has gone; after limit_s it is killed without the shim's help."""
        try:
            self._shim.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_directly()
            self._shim.wait(limit_s)

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended; exit_code() tells
            self._socket.sendall(json.dumps(message).encode() + b"\n")


def processes_with_token(token: str) -> list[int]:
    """Live processes, other than this one, whose environment carries the token of a run or of one of its pods."""
    return _processes_with(f"{TOKEN_VARIABLE}={token}.".encode())


def _processes_with(mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        if environment.startswith(mark) or b"\0" + mark in environment:
            found.append(int(entry.name))
    return found


def descends_from(pid: int, roots: Sequence[int]) -> bool:
    """Whether pid is below one of roots."""
    return any(pid in descendants(root) for root in roots)
