"""A fork of the template becomes `python -m trainer ARGUMENTS`: what a new interpreter would find, it must find."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from trainer.standby.protocol import Request

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, and end now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def run(module: str, request: Request, stdio: Iterable[int], template: int, close: Iterable[int]) -> NoReturn:
    """In the fork: run the module under the name `__main__`.

    stdio: descriptors for 0, 1 and 2. template: process id of the parent. close: descriptors of the template.
    """
    code = 1
    try:
        die_with(template)
        os.setsid()  # as launchers do with their ranks: signals to the group reach the rank and its writers
        for descriptor in close:
            os.close(descriptor)
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _take_over(request)
        _show_as([sys.executable, "-u", "-m", module, *request.arguments])
        sys.argv = [module, *request.arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  whatever it is, this process must not go on as a second template
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _take_over(request: Request) -> None:
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    os.sched_setaffinity(0, request.cpus)
    tempfile.tempdir = None  # so that TMPDIR counts
    if "numpy" in sys.modules:
        # Seeded when it was imported: all ranks of the node would draw the same. Python's own seeds itself in a fork.
        sys.modules["numpy"].random.seed()


def _show_as(words: list[str]) -> None:
    """Show this command line to `ps` and to the supervisor, which finds ranks by it. Left alone if it does not fit.

    It is written over the template's own, where the kernel reads it (proc_pid_cmdline).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = b"\0".join(map(os.fsencode, words)) + b"\0"
    if len(line) <= end - start:
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)
