"""Starts `python -m MODULE` by a fork of a process that has its imports behind it: 0.02 s instead of 3.5 s on each of
two slow cores, which is what lets 200 kills fit into half an hour.

Run as `python -m bench.chaos.zygote DESCRIPTOR MODULE...`: it imports the modules, then obeys JSON lines on the socket.
It has one thread and no process group, so that a fork of it is as good as a new process. What it starts is the module
that was asked for, unchanged, under the name `__main__`; only `multiprocessing`'s way to start an interpreter is
replaced (`Embryos`), for the same reason: NVRx spawns each writer, and a spawned one imports torch again.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from multiprocessing import util
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
EMBRYO = "hf-embryo"
WRITER = "hf-writer"
"""Names of a process (`/proc/<pid>/comm`) before and after it has become what multiprocessing spawns."""
SPAWNED = "--multiprocessing-fork"
"""Word in the command line of everything that multiprocessing spawns."""
_MOVED = 1000
"""Received descriptors wait above this number until those below are closed."""


def main() -> None:
    """Import, then fork one process per order until the other end closes; then kill what is left."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"{len(threads)} threads after the imports: a fork would lose all but one of them")
    children: set[int] = set()
    orders = control.makefile("r")
    _answer(control, {"ready": os.getpid()})
    for line in orders:
        order = json.loads(line)
        if "module" in order:
            pid = os.fork()
            if pid == 0:
                orders.close()
                control.close()
                _run(order)
            children.add(pid)
            _answer(control, {"pid": pid})
        else:
            _answer(control, {"ended": _reap(children)})
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _reap(children: set[int]) -> dict[int, int]:
    """Exit codes (negative: signal) of children that have ended since the last call. Until it is told here, a pid is
    not given to another process."""
    ended = {}
    for pid in sorted(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended[pid] = os.waitstatus_to_exitcode(status)
            children.remove(pid)
    return ended


def _run(order: dict[str, Any]) -> NoReturn:
    """In the new process: be `python -m module arguments`."""
    code = 1
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the zygote's death must not leave ranks behind
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        os.chdir(order["folder"])
        _take_environment(order["environment"])
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        embryos = Embryos(order["embryos"])
        vars(util)["spawnv_passfds"] = embryos.spawn
        sys.argv = [order["module"], *order["arguments"]]
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException:  # noqa: BLE001  whatever it is, this process must not go on as a second zygote
        traceback.print_exc()
    _leave(code)


def _take_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # so that TMPDIR counts


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _prctl(what: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(what, value)


class Embryos:
    """Children that a process forks before it does anything else, each of which can become what multiprocessing spawns.

    To those who look, there is no difference to a spawned process: it is a child of the one that spawns, is waited for
    and dies with it in the same way, has the environment, limits and descriptors of that moment and runs the same
    program; only its imports are done. When all are used up, multiprocessing's own way is taken.
    """

    def __init__(self, count: int) -> None:
        self._own = util.spawnv_passfds
        self._waiting: list[tuple[int, socket.socket]] = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                for _, other in self._waiting:
                    other.close()
                _hatch(theirs)
            theirs.close()
            self._waiting.append((pid, ours))

    def spawn(self, path: Any, words: Sequence[Any], descriptors: Sequence[int]) -> int:
        """In place of multiprocessing.util.spawnv_passfds; the new process's pid."""
        words = [os.fsdecode(word) for word in words]
        if SPAWNED not in words or not self._waiting:
            return int(self._own(path, words, descriptors))
        pid, channel = self._waiting.pop(0)
        wanted = sorted({int(descriptor) for descriptor in descriptors})
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        fate = {"words": words, "environment": dict(os.environ), "descriptors": wanted, "limits": limits}
        with channel:
            socket.send_fds(channel, [b"!"], wanted)
            channel.sendall(json.dumps(fate).encode())
        return pid


def _hatch(channel: socket.socket) -> NoReturn:
    """In an embryo: wait, then run the program that was to be spawned. Ends with the process that could spawn it."""
    code = 1
    try:
        _prctl(PR_SET_NAME, EMBRYO.encode())
        _, received, _, _ = socket.recv_fds(channel, 1, 64)
        with channel, channel.makefile("r") as rest:
            text = rest.read()
        if not text:
            os._exit(0)
        fate = json.loads(text)
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(fate["limits"]))
        _place(received, fate["descriptors"])
        _take_environment(fate["environment"])
        _prctl(PR_SET_NAME, WRITER.encode())
        words = fate["words"]
        program = words.index("-c") + 1
        sys.argv = ["-c", *words[program + 1 :]]
        exec(words[program], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException:  # noqa: BLE001  as above
        traceback.print_exc()
    _leave(code)


def _place(received: Sequence[int], wanted: Sequence[int]) -> None:
    """Give the received descriptors the numbers that they have in the spawning process; close all others."""
    import fcntl

    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MOVED) for descriptor in received]
    os.closerange(3, _MOVED)
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number)
    for descriptor in moved:
        os.close(descriptor)


if __name__ == "__main__":
    main()
