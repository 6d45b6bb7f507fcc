"""Segments: shared, pinned host memory, and how another process finds it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

POPULATE_BYTES = 1 << 24
"""Pages are faulted in so many bytes at a time: the kernel keeps other threads from mapping memory meanwhile. Measured
on 3.2 GB: with one call per GB the main thread stood still for 5.6 s."""
PINNING_THREADS = 4
MADV_POPULATE_WRITE = 23
SHARED_MEMORY = "/dev/shm"


class StagingFailed(Exception):
    """The host memory for staged copies cannot be had."""


@dataclass(frozen=True)
class Handle:
    """A shared segment as another process of this user finds it: through the owner's file descriptor.

    torch would send the descriptor itself, by a thread that serves it until it is fetched; a writer that is killed
    before never fetches it. inode: a descriptor's number can be used again for something else.
    """

    path: str
    bytes: int
    inode: int

    @classmethod
    def of(cls, segment: torch.Tensor) -> Handle:
        """The handle of a shared tensor; good while the tensor lives."""
        descriptor, _ = segment.untyped_storage()._share_fd_cpu_()
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}", segment.nbytes, os.fstat(descriptor).st_ino)

    def open(self) -> torch.Tensor:
        """The segment, as flat bytes, in this process. Raises OSError if its owner has let go of it."""
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_ino != self.inode:
                raise OSError(f"{self.path}: the segment is gone, and its descriptor is used for something else")
            return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=self.bytes, dtype=torch.uint8)


def allocate(sizes: Sequence[int], device: torch.device | None) -> list[Future[torch.Tensor]]:
    """Allocate all segments, each in the background; the threads end with the last one."""
    pool = ThreadPoolExecutor(PINNING_THREADS, thread_name_prefix="stage")
    parts = [pool.submit(_segment, size, sum(sizes), device) for size in sizes]
    pool.shutdown(wait=False)
    return parts


def _require_room(wanted: int, of: int) -> None:
    """Writing to shared memory that is not there ends in SIGBUS rather than in an error."""
    space = os.statvfs(SHARED_MEMORY)
    free = space.f_bavail * space.f_frsize
    if wanted > free:
        raise StagingFailed(
            f"{SHARED_MEMORY}: {free:,} bytes are free and the staged copy of this rank takes {of:,}. "
            "Give the pod a larger shm volume or use more nodes; `holdfast check` prints what a node needs."
        )


def _segment(size: int, of: int, device: torch.device | None) -> torch.Tensor:
    """One shared segment of `of` bytes in all, its pages in memory, pinned if a GPU copies into it."""
    _require_room(size, of)
    try:
        storage = torch.UntypedStorage._new_shared(size)
    except RuntimeError as error:
        raise StagingFailed(f"{size:,} of {of:,} bytes of host memory cannot be had: {error}") from None
    segment = torch.empty(0, dtype=torch.uint8).set_(storage)
    _populate(segment)
    if device is not None:
        with torch.cuda.device(device):
            status = torch.cuda.cudart().cudaHostRegister(segment.data_ptr(), size, 0)
        if int(status) != 0:
            raise StagingFailed(f"cudaHostRegister of {size:,} bytes failed with error {int(status)}")
    return segment


def _populate(segment: torch.Tensor) -> None:
    """Fault all pages in now, in this background thread, instead of in the first copy. An error instead of SIGBUS."""
    libc = ctypes.CDLL(None, use_errno=True)
    end = segment.data_ptr() + segment.nbytes
    for start in range(segment.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, end, POPULATE_BYTES):
        length = min(POPULATE_BYTES, end - start)
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_POPULATE_WRITE) == 0:
            continue
        error = ctypes.get_errno()
        if error == errno.EINVAL:  # a kernel before 5.14 does not know the request
            segment.zero_()
            return
        raise StagingFailed(f"{SHARED_MEMORY}: {segment.nbytes:,} bytes cannot be had: {os.strerror(error)}")
