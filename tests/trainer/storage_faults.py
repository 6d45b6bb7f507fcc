"""A program, not a test: one rank saves while its storage refuses, `python -m tests.trainer.storage_faults KIND DIR`.

Run it in a mount namespace of its own (`unshare`), where it mounts a small file system at DIR/checkpoints. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.trainer.saves import Session, config

LIMIT_MIB = 4


def main(kind: str, run_dir: Path) -> dict[str, Any]:
    """Save at steps 10, 20 and 30; the storage refuses at 20."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    checkpoints = run_dir / "checkpoints"
    checkpoints.mkdir(parents=True)
    _mount(checkpoints, f"size={LIMIT_MIB}m")
    session = Session(str(run_dir), config("checkpoint.interval_steps=10", world_size=1), 0, 1)
    session.checkpoints.restore()
    session.await_writer()
    pid = session.writer.pid
    session.steps(1, 10)
    session.settle()
    _refuse(kind, checkpoints, run_dir)
    start = time.monotonic()
    session.steps(11, 20)
    session.settle()
    refused_s = time.monotonic() - start
    during = session.committed()
    left = [path.name for path in checkpoints.glob("*.partial/*")]
    _allow(kind, checkpoints, run_dir)
    session.steps(21, 30)
    session.settle()
    outcome = {
        "during": during,
        "after": session.committed(),
        "errors": [event["error"] for event in session.events("save_failed")],
        "refused_s": refused_s,
        "left": left,
        "same_writer": session.writer.pid == pid,
    }
    session.close()
    return outcome


def _mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, timeout=10)


def _refuse(kind: str, folder: Path, run_dir: Path) -> None:
    if kind == "full":
        space = os.statvfs(folder)
        (folder / "somebody-elses").write_bytes(b"x" * (space.f_bavail * space.f_frsize - 8192))
    elif kind == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=10)
    else:
        (run_dir / "broken").touch()


def _allow(kind: str, folder: Path, run_dir: Path) -> None:
    if kind == "full":
        (folder / "somebody-elses").unlink()
    elif kind == "read-only":
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True, timeout=10)
    else:
        (run_dir / "broken").unlink()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
