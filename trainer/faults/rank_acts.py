"""What a rank does to itself. Each act takes the fault and does it in the calling thread."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from holdfast.config.faults import Fault
from trainer.faults.connections import silence

OOM_ROOM_BYTES = 64 << 20
"""`rank_oom` leaves itself so much address space more than it has."""
PIECE_BYTES = 1 << 20
GONE_WITHIN_S = 5.0
"""A killed process frees its memory before it is gone."""
UNKNOWN_DOMAIN = ".invalid"
"""RFC 2606: no name below it ever resolves."""


class InjectedFault(RuntimeError):
    """The exception of the fault kind `exception`."""


def pause(for_s: float) -> None:
    """SIGSTOP to this process, as a debugger does; a child of a child wakes it again after the time."""
    command = ["sh", "-c", f"(sleep {for_s}; kill -CONT {os.getpid()}) >/dev/null 2>&1 &"]
    subprocess.run(command, check=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def kill(pid: int | None) -> None:
    """SIGKILL to a process, if there is one, and wait until the kernel has ended it: what comes next finds it dead."""
    if pid is None:
        return
    deadline = time.monotonic() + GONE_WITHIN_S
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGKILL)
        stat = Path(f"/proc/{pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] not in "ZX" and time.monotonic() < deadline:
            time.sleep(0.005)


def exhaust_memory(_: Fault) -> None:
    """Allocate until the kernel refuses, below a limit of our own. The limit goes, and the memory with it, when the
    MemoryError leaves: a restart in the same process must be possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + OOM_ROOM_BYTES
    pieces = []
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        while True:
            pieces.append(bytearray(PIECE_BYTES))
    finally:
        pieces.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exhaust_gpu(_: Fault) -> None:
    """Allocate on the GPU until torch.OutOfMemoryError; what was taken is given back, as after a real one."""
    import torch

    pieces, size = [], 1 << 30
    try:
        while True:
            pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    finally:
        pieces.clear()
        torch.cuda.empty_cache()


def read_illegal_address(_: Fault) -> None:
    """A kernel that reads an address which is nobody's, and the wait that tells of it."""
    import torch

    # Compiled at run time (NVRTC): torch has no operation that reads where it is told to.
    read = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T read(T x) { return *(const volatile T*)(0x10ULL + (unsigned long long)(x * 8)); }"
    )
    read(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()


def hang() -> None:
    """Stop calling collectives, but keep running bytecode: the restart layers can still raise in this thread."""
    while True:
        time.sleep(0.05)


def hang_with_the_interpreter() -> None:
    """Wait in native code without giving the interpreter's lock away. Signals that Python handles are blocked: they
    would end the wait, and a loop around it is Python."""
    handled = {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(int(timedelta(days=7).total_seconds()))


def jump(fault: Fault) -> None:
    """From now on the wall clock of this process's Python code is ahead. Monotonic clocks are not."""
    wall, wall_ns, ahead = time.time, time.time_ns, fault.for_s
    time.time = lambda: wall() + ahead
    time.time_ns = lambda: wall_ns() + round(ahead * 1e9)


def _raise(fault: Fault) -> None:
    raise InjectedFault(f"injected {fault.id}")


ACTS: Mapping[str, Callable[[Fault], object]] = {
    "exception": _raise,
    "rank_sigkill": lambda _: kill(os.getpid()),
    "rank_sigstop": lambda fault: pause(fault.for_s),
    "hang": lambda _: hang(),
    "hang_gil": lambda _: hang_with_the_interpreter(),
    "rank_oom": exhaust_memory,
    "cuda_oom": exhaust_gpu,
    "cuda_error": read_illegal_address,
    "network_partition": lambda _: silence(),
    "clock_jump": jump,
}
"""Kind -> what the rank does. The other kinds need something of `Faults`, or the writer process."""
