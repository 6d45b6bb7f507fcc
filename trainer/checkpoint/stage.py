"""Stage: copy the live tensors to host memory that the writer process can read, allocated once and used for every save.

On CUDA the copy runs on a side stream into pinned memory while the next forward and backward run; the next optimizer
update waits for it (`wait`), nothing else does. On a CPU it is a plain copy. NVRx 0.6.0 hands live CPU tensors to its
writer, which then reads what the optimizer is changing; hence the copy is ours.

The memory is a few flat segments rather than one buffer per tensor: one file descriptor each instead of a thousand
(Llama-8B), sent to the writer once, and pinned in large pieces by a background thread while the model is being built
and restored.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

SEGMENT_BYTES = 1 << 28
"""Largest segment, unless one tensor is larger. Small enough that pinning one does not hold up the process for long:
the kernel keeps other threads from mapping memory meanwhile."""
POPULATE_BYTES = 1 << 24
"""Pages are faulted in so many bytes at a time, for the same reason. Measured on 3.2 GB: with one call per GB the main
thread stood still for 5.6 s."""
ALIGNMENT = 512
PINNING_THREADS = 4
MADV_POPULATE_WRITE = 23
ALLOCATION_LIMIT_S = 300.0
"""The first save waits at most so long for the buffers. Measured: 26 s for 16.8 GB, tensor by tensor."""
SHARED_MEMORY = "/dev/shm"


class StagingFailed(Exception):
    """The host memory for staged copies cannot be had."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in the segments."""

    segment: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, segments: list[torch.Tensor]) -> torch.Tensor:
        """The tensor in the segments, with a storage of its own size: torch.save writes the whole storage of a view."""
        count = 1
        for length in self.shape:
            count *= length
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        memory = segments[self.segment].numpy()
        return torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Sizes of the segments, the slot of each distinct tensor, and name -> index of its slot (tied weights share)."""

    sizes: tuple[int, ...]
    slots: tuple[Slot, ...]
    names: dict[str, int]

    @property
    def bytes(self) -> int:
        """Host memory."""
        return sum(self.sizes)

    def slot(self, name: str) -> Slot:
        """Where the tensor of this name lies."""
        return self.slots[self.names[name]]


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


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, sharing its memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def lay_out(live: dict[str, torch.Tensor], limit: int = SEGMENT_BYTES) -> tuple[Layout, list[torch.Tensor]]:
    """A place for each distinct tensor, in order, and these tensors' local parts."""
    sizes, locals_ = [0], []
    slots: list[Slot] = []
    indices: dict[str, int] = {}
    seen: dict[int, int] = {}
    for name, tensor in live.items():
        if id(tensor) not in seen:
            local = local_part(tensor)
            start = -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
            if start and start + local.nbytes > limit:
                sizes.append(0)
                start = 0
            sizes[-1] = start + local.nbytes
            seen[id(tensor)] = len(slots)
            slots.append(Slot(len(sizes) - 1, start, tuple(local.shape), local.dtype))
            locals_.append(local)
        indices[name] = seen[id(tensor)]
    return Layout(tuple(max(size, ALIGNMENT) for size in sizes), tuple(slots), indices), locals_


class Stage:
    """Shared host memory. It survives in-process restarts: `bind` points it at the tensors of a new attempt."""

    def __init__(self) -> None:
        self.layout = Layout((), (), {})
        self._allocation: list[Future[torch.Tensor]] = []
        self._buffers: list[torch.Tensor] = []
        self._locals: list[torch.Tensor] = []
        self._device: torch.device | None = None
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    def bind(self, live: dict[str, torch.Tensor]) -> None:
        """Stage these tensors from now on; returns at once. The memory is kept if it fits, which it does after every
        restart of one model, and is otherwise allocated and pinned in the background.

        Nobody may be reading the buffers: the writer is idle or gone.
        """
        if self._stream is not None:
            self._stream.synchronize()  # a copy that an aborted attempt began must not land in the new one's save
        layout, self._locals = lay_out(live)
        self._copied = None
        self._device = next((local.device for local in self._locals if local.is_cuda), None)
        if self._device is not None and self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        if layout != self.layout:
            self.release()
            self.layout = layout
        if not self._allocation or any(part.done() and part.exception() for part in self._allocation):
            self._buffers = []
            self._allocation = _in_background(self.layout, self._device)

    @property
    def bytes(self) -> int:
        """Host memory of the segments."""
        return self.layout.bytes

    def segments(self) -> list[torch.Tensor]:
        """The flat uint8 tensors, one per segment. Waits until they are there. Raises StagingFailed."""
        if not self._allocation:
            raise StagingFailed("no tensors are bound to the stage")
        _, late = wait(self._allocation, ALLOCATION_LIMIT_S, FIRST_EXCEPTION)
        for part in self._allocation:
            if part.done():
                part.result()
        if late:
            why = f"{self.bytes:,} bytes of host memory were not ready within {ALLOCATION_LIMIT_S:.0f} s"
            raise StagingFailed(why)
        return [part.result() for part in self._allocation]

    def copy(self) -> None:
        """Begin to copy the live tensors as they are now."""
        if not self._buffers:
            segments = self.segments()
            self._buffers = [slot.of(segments) for slot in self.layout.slots]
        if self._stream is None:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._locals)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.no_grad():
            torch._foreach_copy_(self._buffers, self._locals, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(self._stream)

    def wait(self) -> None:
        """Make the current stream wait for the copy: call before anything that changes the live tensors."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def done(self) -> bool:
        """Whether the copy is complete, so that another process may read the buffers."""
        return self._copied is None or self._copied.query()

    def put_back(self) -> None:
        """Copy the buffers to the live tensors: the way back, for a state that was read into the segments."""
        segments = self.segments()
        with torch.no_grad():
            torch._foreach_copy_(self._locals, [slot.of(segments) for slot in self.layout.slots])
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    def forget(self) -> None:
        """Let go of the live tensors of an attempt that is over; the buffers stay."""
        self._locals = []

    def release(self) -> None:
        """Unpin and free the memory. What is freed while pinned makes the next pinning at its address fail."""
        allocation, self._allocation = self._allocation, []
        self._buffers = []
        if self._device is None:
            return
        wait(allocation, ALLOCATION_LIMIT_S)
        for part in allocation:
            if part.done() and part.exception() is None:
                torch.cuda.cudart().cudaHostUnregister(part.result().data_ptr())


def _in_background(layout: Layout, device: torch.device | None) -> list[Future[torch.Tensor]]:
    """Allocate all segments, each in the background; the threads end with the last one."""
    pool = ThreadPoolExecutor(PINNING_THREADS, thread_name_prefix="stage")
    parts = [pool.submit(_segment, size, layout.bytes, device) for size in layout.sizes]
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
