"""Whether a fork of this process is as good as a new interpreter that has imported the same, and what it must drop."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def unfit_to_fork() -> str | None:
    """Why a fork of this process would not be as good as a new one, or None."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(descriptor) == "/dev/nvidia-uvm":
                return "its imports have initialized CUDA, which a fork cannot use"
        except OSError:
            continue
    threads = [_name(task) for task in sorted(Path("/proc/self/task").iterdir())]
    if len(threads) != 1:
        return f"it has {len(threads)} threads ({', '.join(threads)}), of which a fork would have one"
    return None


def _name(task: Path) -> str:
    """What a thread calls itself: who has started it."""
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return "one that has ended"


def close_sockets() -> None:
    """In a fork: let go of the parent's connections. Whoever is at the other end must see when the parent ends."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                os.close(int(entry))
        except OSError:
            continue  # the descriptor of the listing itself
