"""Stage: copy the live tensors to host memory that the writer process can read, allocated once and used for every save.

On CUDA the copy runs on a side stream into pinned memory while the next forward and backward run; the next optimizer
update waits for it (`wait`), nothing else does. On a CPU it is a plain copy. NVRx 0.6.0 hands live CPU tensors to its
writer, which then reads what the optimizer is changing; hence the copy is ours.

The memory is a few flat segments rather than one buffer per tensor: one file descriptor each instead of a thousand
(Llama-8B), sent to the writer once, and pinned in large pieces by background threads from the moment on at which the
model and its optimizer are there, while a checkpoint is restored and the first steps run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from trainer.checkpoint.segments import StagingFailed, allocate

SEGMENT_BYTES = 1 << 28
"""Largest segment, unless one tensor is larger. Small enough that pinning one does not hold up the process for long:
the kernel keeps other threads from mapping memory meanwhile."""
ALIGNMENT = 512
ALLOCATION_LIMIT_S = 300.0
"""The first save waits at most so long for the buffers. Measured: 26 s for 16.8 GB, tensor by tensor."""
LOOK_UP_S = 0.2


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
        self._due: torch.cuda.Event | None = None
        """When the live tensors held what is to be copied; until the copy is launched."""
        self._copied: torch.cuda.Event | None = None

    def bind(self, live: dict[str, torch.Tensor]) -> None:
        """Stage these tensors from now on; returns at once. The memory is kept if it fits, which it does after every
        restart of one model, and is otherwise allocated and pinned in the background.

        Nobody may be reading the buffers: the writer is idle or gone.
        """
        if self._stream is not None:
            self._stream.synchronize()  # a copy that an aborted attempt began must not land in the new one's save
        layout, self._locals = lay_out(live)
        self._due = self._copied = None
        self._device = next((local.device for local in self._locals if local.is_cuda), None)
        if self._device is not None and self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        if layout != self.layout:
            self.release()
            self.layout = layout
        if any(part.done() and part.exception() for part in self._allocation):
            self.release()
        if not self._allocation:
            self._allocation = allocate(self.layout.sizes, self._device)

    @property
    def bytes(self) -> int:
        """Host memory of the segments."""
        return self.layout.bytes

    def segments(self) -> list[torch.Tensor]:
        """The flat uint8 tensors, one per segment. Waits until they are there. Raises StagingFailed."""
        if not self._allocation:
            raise StagingFailed("no tensors are bound to the stage")
        late: Iterable[Future[torch.Tensor]] = self._allocation
        deadline = time.monotonic() + ALLOCATION_LIMIT_S
        while late and time.monotonic() < deadline:
            # In short waits: an abort by layer 1 reaches only a thread that runs Python now and then.
            done, late = wait(self._allocation, LOOK_UP_S, FIRST_EXCEPTION)
            if any(part.exception() for part in done):
                break
        for part in self._allocation:
            if part.done():
                part.result()
        if late:
            raise StagingFailed(
                f"{self.bytes:,} bytes of host memory were not ready within {ALLOCATION_LIMIT_S:.0f} s: the machine is "
                "short of memory, or another program keeps it busy. `holdfast check` prints what a node needs."
            )
        return [part.result() for part in self._allocation]

    def copy(self) -> None:
        """Begin to copy the live tensors as they are now. On CUDA nothing is launched yet, see `launch`."""
        if not self._buffers:
            segments = self.segments()
            self._buffers = [slot.of(segments) for slot in self.layout.slots]
        if self._stream is None:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._locals)
            return
        self._due = torch.cuda.Event()
        self._due.record(torch.cuda.current_stream())
        self._copied = None

    def launch(self) -> None:
        """Launch the copy that is due, if one is. To launch hundreds of copies takes the host some milliseconds, in
        which a GPU that has just finished an update would idle; call it when the next forward pass has been launched.
        """
        if self._due is None or self._stream is None:
            return
        self._stream.wait_event(self._due)
        with torch.cuda.stream(self._stream), torch.no_grad():
            torch._foreach_copy_(self._buffers, self._locals, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(self._stream)
        self._due = None

    def wait(self) -> None:
        """Make the current stream wait for the copy: call before anything that changes the live tensors."""
        self.launch()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def done(self) -> bool:
        """Whether the copy is complete, so that another process may read the buffers."""
        return self._due is None and (self._copied is None or self._copied.query())

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
