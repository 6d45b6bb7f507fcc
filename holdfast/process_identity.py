"""Which process a record means: a pid alone is reused, and says nothing on another machine or in another container."""

from __future__ import annotations

import os
from pathlib import Path


def boot_id() -> str:
    """Names this boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Names the namespace in which this process's pids count."""
    return os.readlink("/proc/self/ns/pid")


def pid_started(pid: int) -> str:
    """Start time of a process in clock ticks since boot, which tells a reused pid apart; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
