"""Preflight: is this node fit to train? Asked before the launcher starts, before each of its restarts, by a hot spare
from time to time, and before a restart in process.

No torch: it must answer in a fraction of a second. Each finding is one line that names what, how much, and what to do.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.config import RunConfig, names, sizing

STORAGE_LIMIT_S = 30.0
"""A shared file system that does not finish one small fsynced write in this time is not fit to save to."""
EARLIEST_CLOCK_S = 1_735_689_600.0
"""2025-01-01: a node whose clock is before it has not been set, and its records would mislead people and certificates.
"""


def findings(config: RunConfig, run_dir: Path, shm: Path = Path(names.SHM_MOUNT)) -> list[str]:
    """Everything that makes this node unfit; empty if it is fit."""
    checks: list[Callable[[], Iterator[str]]] = [
        lambda: _devices(config),
        lambda: _shm(config, shm),
        _node_volume,
        lambda: _storage(run_dir),
        _clock,
    ]
    return [finding for check in checks for finding in check()]


def warnings(config: RunConfig, run_dir: Path) -> list[str]:
    """What does not stop the run yet: room for fewer checkpoints than retention keeps."""
    if config.checkpoint.mode == "off":
        return []
    need = sizing.checkpoint_bytes(config) * (config.checkpoint.keep_last + 1)
    free = shutil.disk_usage(_existing(run_dir)).free
    if free >= need:
        return []
    return [
        f"{run_dir}: {free / 1e9:.2f} GB free, but checkpoint.keep_last={config.checkpoint.keep_last} and one save in "
        f"flight need {need / 1e9:.2f} GB. Saves will fail when it is full; free some room or lower keep_last."
    ]


def port_taken(port: int) -> str | None:
    """Why the store cannot listen on the port; nvrx-control itself would only warn and wait."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return str(error.strerror)
    return None


def _devices(config: RunConfig) -> Iterator[str]:
    if config.device != "cuda":
        return
    want = config.cluster.ranks_per_node
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    have = (
        len([d for d in visible.split(",") if d])
        if visible is not None
        else len(list(Path("/dev").glob("nvidia[0-9]*")))
    )
    if have < want:
        yield (
            f"{have} GPUs are visible, cluster.ranks_per_node={want} are needed. "
            "Look for an Xid error in the node's kernel log."
        )
    efa = config.instance.efa
    found = len(list(Path("/sys/class/infiniband").glob("*"))) if efa else 0
    if found < efa:
        yield (
            f"{found} EFA devices are visible, {config.cluster.instance_type} has {efa}; "
            "NCCL would fall back to TCP in silence."
        )


def _shm(config: RunConfig, shm: Path) -> Iterator[str]:
    if config.checkpoint.mode == "off":
        return
    need = sizing.staging_bytes_per_node(config)
    try:
        size = shutil.disk_usage(shm).total
    except OSError as error:
        yield f"{shm}: {error.strerror}. Staging needs shared memory; mount an emptyDir of medium Memory there."
        return
    if size < need:
        yield f"{shm} has {size / 1e9:.2f} GB; staging needs {need / 1e9:.2f} GB. Raise the emptyDir's sizeLimit."


def _node_volume() -> Iterator[str]:
    """The node's own disk or memory, for the local tier; also where others say that they found the node unfit."""
    volume = os.environ.get(names.ENV_NODE_VOLUME)
    if volume is None:
        return
    try:
        why = (Path(volume) / names.UNFIT_MARK).read_text(errors="replace")[:500]
    except OSError:
        why = None
    if why is not None:
        mark = f"{volume}/{names.UNFIT_MARK}"
        yield f"{mark} says: {' '.join(why.split()) or 'nothing'}. Mend or replace the node, then delete that file."
    yield from _storage(Path(volume))


def _storage(run_dir: Path) -> Iterator[str]:
    """Write, fsync, read back and delete one small file, in a thread: a hung mount blocks for ever."""
    outcome: list[str | None] = []

    def probe() -> None:
        path = run_dir / f".probe.{os.uname().nodename}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            with open(path, "w+b") as file:
                file.write(b"holdfast")
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                outcome.append(
                    None
                    if file.read() == b"holdfast"
                    else f"{run_dir}: a file read back differs from what was written."
                )
            path.unlink()
        except OSError as error:
            # A full disk: saves fail until there is room, which training survives. It is no fault of this node.
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                outcome.append(None)
                path.unlink(missing_ok=True)
                return
            outcome.append(f"{run_dir}: not writable ({error.strerror}). Look at the volume's mount and free space.")

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(STORAGE_LIMIT_S)
    if not outcome:
        yield f"{run_dir}: no answer within {STORAGE_LIMIT_S:.0f} s. The file system hangs; look at its status."
    elif outcome[0] is not None:
        yield outcome[0]


def _clock() -> Iterator[str]:
    now = time.time()
    if now < EARLIEST_CLOCK_S:
        yield f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}. Set the node's time (chrony)."


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
