"""Persist: NVRx's persistent writer process writes this rank's files and then its acknowledgement.

The writer is supervised: it dies with the trainer, a dead or late one is replaced and its save counted as failed.
NVRx's own wait (`maybe_finalize_async_calls(blocking=True)`) never returns once the writer died and is never called.
"""

from __future__ import annotations

import base64
import ctypes
import io
import json
import os
import pickle
import queue
import signal
import time
import zlib
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest, PersistentAsyncCaller
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync

from holdfast.run_directory import read_json, write_atomically
from trainer.checkpoint.plan import ShardPlan

PR_SET_PDEATHSIG = 1
DELAY_VARIABLE = "HOLDFAST_TEST_WRITE_DELAY_S"
"""Tests slow the writer down by so many seconds per save, so that faults can be placed in the middle of a write."""


class WriterFailed(Exception):
    """The writer process died, was too slow, or could not write."""


class Writer:
    """The writer process of this rank. Survives in-process restarts; one request at a time."""

    def __init__(self, rank: int, threads: int) -> None:
        self._rank = rank
        self._threads = threads
        self._caller: PersistentAsyncCaller | None = None
        self._request = 0
        self._last = 0
        self._busy_since: float | None = None

    def warm_up(self) -> None:
        """Start the process now (it imports torch meanwhile), so that the first save does not wait for it."""
        if self._caller is None:
            # cpu_shm_mode: the worker gets CPU tensors only and must not touch CUDA.
            self._caller = PersistentAsyncCaller(cpu_priority=10, sigterm_timeout=1.0, cpu_shm_mode=True)
            self._caller.rank = self._rank
            self._caller._start_worker(self._rank)
            self._send(
                AsyncRequest(
                    async_fn=_die_with_parent, async_fn_args=(os.getpid(),), finalize_fns=[], async_fn_kwargs={}
                )
            )

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self._busy_since is not None

    @property
    def pid(self) -> int | None:
        """Process id of the writer."""
        return self._caller.process.pid if self._caller and self._caller.process else None

    def write(self, plan: ShardPlan, folder: Path) -> None:
        """Begin to write this rank's part of a checkpoint into `folder`."""
        self.warm_up()
        arguments = (
            self._rank,
            str(folder),
            plan.items,
            plan.tensors,
            plan.storage_plan,
            plan.transforms,
            self._threads,
        )
        self._send(AsyncRequest(async_fn=write_shard, async_fn_args=arguments, finalize_fns=[], async_fn_kwargs={}))
        self._busy_since = time.monotonic()

    def poll(self, limit_s: float) -> bool:
        """Whether the last write has ended. Raises WriterFailed if the process died or took longer than `limit_s`."""
        if self._busy_since is None or self._caller is None:
            return True
        if self._completed() >= self._request:
            self._busy_since = None
            return True
        process = self._caller.process
        if not process.is_alive():
            code = process.exitcode
            self.abort()
            raise WriterFailed(f"the writer process of rank {self._rank} ended with code {code}")
        if time.monotonic() - self._busy_since > limit_s:
            self.abort()
            raise WriterFailed(
                f"the writer of rank {self._rank} took longer than checkpoint.persist_timeout_s={limit_s}"
            )
        return False

    def abort(self) -> None:
        """Kill the process and forget its work; the next write starts a new one."""
        caller, self._caller = self._caller, None
        self._busy_since = None
        self._request = 0
        self._last = 0
        if caller is None or caller.process is None:
            return
        process, caller.process = caller.process, None
        process.kill()
        process.join(5)
        for channel in (caller.queue, caller.preload_q, caller.comp_q):
            # What is still in the pipe is for a dead reader; joining its feeder thread would wait for ever.
            channel.cancel_join_thread()
            channel.close()
        # A request that the dead process had not fetched holds a duplicate of each buffer's file descriptor: 117 to 156
        # per kill on a small Llama, until the process may open no more. Nobody else shares by this server.
        resource_sharer.stop(5)

    def close(self) -> None:
        """End the idle process."""
        self.abort()

    def _send(self, request: AsyncRequest) -> None:
        assert self._caller is not None
        self._request += 1
        self._caller.schedule_async_call(request._replace(call_idx=self._request))

    def _completed(self) -> int:
        """Index of the last request that the process has finished."""
        assert self._caller is not None
        while True:
            try:
                self._last = self._caller.comp_q.get_nowait()
            except queue.Empty:
                return self._last


class _Checksummed(io.BufferedWriter):
    """A file that knows the CRC-32 of all bytes written. DCP writes in order; a seek would show in the size."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "wb"), buffer_size=1 << 20)
        self.crc = 0
        self.count = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.count += len(view)
        return super().write(view)


def write_shard(
    rank: int, folder: str, items: Any, tensors: Any, storage_plan: Any, transforms: Any, threads: int
) -> None:
    """Runs in the writer process: write the files of this rank, fsynced, then `rank-<n>.json`, the acknowledgement.

    What goes wrong ends the process, which the trainer sees and replaces. The reason is in `rank-<n>.failed`, if there
    is room for that, and in the log.
    """
    time.sleep(float(os.environ.get(DELAY_VARIABLE, "0")))
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        files, results = _write_files(rank, folder, items, tensors, storage_plan, transforms, threads)
        record = {
            "rank": rank,
            "files": files,
            "results": base64.b64encode(pickle.dumps(results)).decode(),
        }
        write_atomically(target / f"rank-{rank}.json", json.dumps(record))
    except Exception as error:
        _leave_reason(target, rank, error)
        raise


def _write_files(
    rank: int, folder: str, items: Any, tensors: Any, storage_plan: Any, transforms: Any, threads: int
) -> tuple[list[dict[str, Any]], list[Any]]:
    streams: dict[str, _Checksummed] = {}

    def open_checksummed(path: str, _mode: str) -> _Checksummed:
        streams[path] = _Checksummed(path)
        return streams[path]

    data = (None, (None, None, (items, tensors), None, threads, storage_plan))
    buckets = FileSystemWriterAsync.preload_tensors((folder, data), False)
    results_queue: queue.Queue[Any] = queue.Queue()
    if buckets:
        FileSystemWriterAsync.write_preloaded_data_multithread(
            [transforms], False, open_checksummed, rank, buckets, results_queue
        )
        results = results_queue.get_nowait()
        if isinstance(results, Exception):
            raise results
    else:
        results = {}
    files = []
    for path, stream in streams.items():
        size = os.path.getsize(path)
        if size != stream.count:
            raise OSError(f"{path}: {stream.count} bytes were written, the file has {size}")
        files.append({"name": os.path.basename(path), "bytes": size, "crc32": stream.crc})
    return files, [result for bucket in results.values() for result in bucket]


def _leave_reason(folder: Path, rank: int, error: BaseException) -> None:
    try:
        write_atomically(folder / f"rank-{rank}.failed", json.dumps({"error": f"{type(error).__name__}: {error}"}))
    except OSError:
        pass  # no room for the reason either


def reason_left(folder: Path, rank: int) -> str:
    """Why this rank's writer gave up, if it had room to say so."""
    reason = (read_json(folder / f"rank-{rank}.failed") or {}).get("error")
    return f": {reason}" if reason else ""


def read_acknowledgement(folder: Path, rank: int) -> tuple[list[dict[str, Any]], list[Any]] | None:
    """Files and write results of a rank, or None while it has not finished."""
    record = read_json(folder / f"rank-{rank}.json")
    if record is None:
        return None
    return record["files"], pickle.loads(base64.b64decode(record["results"]))


def _die_with_parent(parent: int) -> None:
    """Runs in the writer process: it must not outlive a killed trainer, holding its memory and writing on."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
