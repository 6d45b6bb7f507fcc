"""One child process of the supervisor: its output is passed on line by line, it is stopped in order or killed, and none
of its descendants outlives it. Launchers start ranks in sessions of their own, so a process-group kill is not enough.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, so that they can be found and reaped. As PID 1 they do
    anyway.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Standby(Protocol):
    """Forks ranks for a launcher (trainer/standby/keeper.py)."""

    @property
    def pid(self) -> int | None:
        """Its process, or None if there is none."""

    def ranks(self) -> list[psutil.Process]:
        """Its ranks."""

    def look_after(self) -> None:
        """See that it is there. Called every half second."""


class Child:
    """A running command. `on_line` gets each line of its output, in a thread of its own."""

    def __init__(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        standby: Standby | None = None,
    ) -> None:
        """standby: who else has ranks of this command. It outlives the command; its ranks do not."""
        self._standby = standby
        self._process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._pass_on, args=(on_line,), daemon=True)
        self._reader.start()

    def _pass_on(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                sys.stdout.write(line)
                sys.stdout.flush()
                on_line(line)

    def code(self) -> int | None:
        """Exit code (negative: signal), or None while it runs."""
        return self._process.poll()

    def ranks(self) -> list[psutil.Process]:
        """Its ranks: direct children, and forks of the standby. Rank monitors are forks of the launcher and have its
        command line."""
        own = [child for child in _children(self.pid) if is_rank(child)]
        return own + (self._standby.ranks() if self._standby is not None else [])

    def terminate(self) -> None:
        """Ask it to end."""
        if self.code() is None:
            self._process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing until `thaw` or the end. Its children go on."""
        if self.code() is None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        if self.code() is None:
            self._process.send_signal(signal.SIGCONT)

    def wait(self, limit_s: float) -> bool:
        """Whether it ends within the limit."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self) -> None:
        """Collect adopted orphans that have ended."""
        reap(self.pid, None if self._standby is None else self._standby.pid)

    def kill_all(self) -> None:
        """Kill it and every process below this one but the standby, again until none is left; at most for 5 s."""
        deadline = time.monotonic() + 5
        stays = self._standby.pid if self._standby is not None else None
        while time.monotonic() < deadline:
            alive = [p for p in _children(os.getpid(), recursive=True) if p.pid != stays and _runs(p)]
            if not alive:
                break
            for process in alive:
                _kill(process)
            time.sleep(0.02)
            self.reap()
        self._process.poll()
        self._reader.join(1)


def reap(*own: int | None) -> None:
    """Collect adopted orphans that have ended, as PID 1 must; `own` are children that subprocess collects itself."""
    for process in _children(os.getpid()):
        try:
            if process.pid not in own and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


def age_s(pid: int) -> float:
    """Seconds since a process started, by the kernel's own clock: a corrected wall clock must not make a rank look old.

    0 if there is no such process.
    """
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - started
    except (OSError, IndexError, ValueError):
        return 0.0


def _children(pid: int, recursive: bool = False) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []


def is_rank(process: psutil.Process) -> bool:
    """Whether its command is `python [options] -m trainer ...`; a launcher has `-m trainer` behind its own name."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    for index, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            return False
        if word == "-m":
            return words[index + 1 : index + 2] == ["trainer"]
    return False


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
