"""Keeps one pod's processes together. Started by the runner as `python -I -S shim.py POD`, standard library only.

It is the sub-reaper of everything that the container starts, so that no process can leave its tree, not even by setsid
and a double fork. It kills the whole tree when the container's command has ended (as the kernel does when PID 1 of a
container ends), when it is told to, and when the runner has died: the control socket on descriptor 0 then reads
end-of-file, however the runner died.

Messages are JSON lines. To the shim: first {argv, remove}, then {do: term}, {do: kill} or {do: exec, id, argv,
timeout_s}. From the shim: {started: pid}, {exec: id, code}, {exit: code}. A death by signal n is code 128 + n. When the
tree is gone the folders in `remove` are deleted and the shim ends with the same code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127
PROBE_TIMED_OUT = 124
CONTROL = 0


_LIBC = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Have this process killed when the thread that forked it ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Every live process below `root`, children before grandchildren. Zombies are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(root, []))
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def kill_all(pids: list[int]) -> None:
    """SIGKILL each of them; those already gone are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def exit_code(status: int) -> int:
    """A wait status as a container's exit code: 128 + n for a death by signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Shim:
    """One container: its main process, its probes, and whatever they leave behind."""

    def __init__(self) -> None:
        self.main = 0
        self.code: int | None = None
        self.probes: dict[int, tuple[int, float]] = {}
        """pid -> (id of the request, monotonic deadline)"""
        self.unread = b""
        self.orphaned = False
        self.wake, wake_write = os.pipe()
        for descriptor in (self.wake, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._signal_main(signal.SIGTERM))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> int:
        """Start the container and keep it until its tree is gone; its exit code."""
        remove: list[str] = []
        for message in self._messages():
            if "argv" in message and "do" not in message:
                remove = message["remove"]
                self.main = self._start(message["argv"])
                self._say({"started": self.main})
            elif message["do"] == "term":
                self._signal_main(signal.SIGTERM)
            elif message["do"] == "exec":
                self.probes[self._start(message["argv"])] = (message["id"], time.monotonic() + message["timeout_s"])
            else:
                break
        self._kill_tree()
        code = 128 + signal.SIGKILL if self.code is None else self.code
        self._remove(remove)
        self._say({"exit": code})
        return code

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Messages of the runner, until it or the main process has ended. Reaps and times out meanwhile."""
        poll = select.poll()
        poll.register(CONTROL, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while self.code is None:
            ready = [descriptor for descriptor, _ in poll.poll(200 if self.probes else None)]
            self._reap()
            self._end_late_probes()
            if CONTROL in ready:
                received = self._receive()
                if not received:
                    self.orphaned = True
                    return
                *lines, self.unread = (self.unread + received).split(b"\n")
                yield from map(json.loads, lines)

    def _receive(self) -> bytes:
        try:
            return os.read(CONTROL, 65536)
        except OSError:
            return b""

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the runner is gone; nobody is left to tell
            os.write(CONTROL, json.dumps(message).encode() + b"\n")

    def _start(self, argv: list[str]) -> int:
        # Blocked until the child has its own handlers: a SIGTERM in between would be swallowed by ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        shim = os.getpid()
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            return pid
        try:
            self._become(argv, shim)
        except OSError as error:
            os.write(2, f"holdfast: cannot start {argv[0]!r}: {error.strerror}\n".encode())
        finally:
            os._exit(CANNOT_START)

    def _become(self, argv: list[str], shim: int) -> None:
        os.setsid()
        die_with_parent()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # as PID 1 of a container it adopts orphans and must reap them
        if os.getppid() != shim:
            return  # it died before the line above
        signal.set_wakeup_fd(-1)
        for changed in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(changed, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, CONTROL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.execvp(argv[0], argv)

    def _signal_main(self, number: int) -> None:
        # After the main process was reaped its pid may belong to somebody else.
        if self.main and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.main, number)

    def _reap(self) -> bool:
        """Collect every ended child. False when no child is left at all."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main:
                self.code = exit_code(status)
            elif pid in self.probes:
                self._say({"exec": self.probes.pop(pid)[0], "code": exit_code(status)})

    def _end_late_probes(self) -> None:
        for pid, (request, deadline) in list(self.probes.items()):
            if time.monotonic() >= deadline:
                del self.probes[pid]
                kill_all([pid, *descendants(pid)])
                self._say({"exec": request, "code": PROBE_TIMED_OUT})

    def _kill_tree(self) -> None:
        """Kill until nobody is left. A child forked during one pass becomes ours and falls in the next."""
        while self._reap():
            kill_all(descendants(os.getpid()))
            select.select([self.wake], [], [], 0.02)

    def _remove(self, folders: list[str]) -> None:
        if folders:
            import shutil  # late: it doubles the shim's start-up time

            for folder in folders:
                if os.path.islink(folder):
                    os.unlink(folder)
                    if self.orphaned:  # the last shim of a killed runner tidies up after it
                        with contextlib.suppress(OSError):
                            os.rmdir(os.path.dirname(folder))
                else:
                    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(Shim().run())
