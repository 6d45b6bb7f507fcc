"""Stage: copy the live tensors to host memory that the writer process can read, allocated once and used for every save.

On CUDA the copy runs on a side stream into pinned memory while the next forward and backward run; the next optimizer
update waits for it (`wait`), nothing else does. On a CPU it is a plain copy. NVRx 0.6.0 hands live CPU tensors to its
writer, which then reads what the optimizer is changing; hence the copy is ours.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, sharing its memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


class Stage:
    """Shared host buffers. They survive in-process restarts: `bind` points them at the tensors of a new attempt."""

    def __init__(self) -> None:
        self.staged: dict[str, torch.Tensor] = {}
        """Dotted name -> buffer. Tied weights have two names and one buffer."""
        self._buffers: list[torch.Tensor] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    def bind(self, live: dict[str, torch.Tensor]) -> None:
        """Stage these tensors from now on. Buffers are kept if they fit, which they do after every restart of one
        model.

        Nobody may be reading the buffers: the writer is idle or gone.
        """
        if self._stream is not None:
            self._stream.synchronize()  # a copy that an aborted attempt began must not land in the new one's save
        distinct = {id(tensor): local_part(tensor) for tensor in live.values()}
        locals_ = list(distinct.values())
        if not _fit(self._buffers, locals_):
            self.release()
            self._buffers = [_shared_buffer(local) for local in locals_]
        self._pairs = list(zip(locals_, self._buffers, strict=True))
        of_tensor = dict(zip(distinct, self._buffers, strict=True))
        self.staged = {name: of_tensor[id(tensor)] for name, tensor in live.items()}
        self._copied = None
        device = next((local.device for local in locals_ if local.is_cuda), None)
        if device is not None and self._stream is None:
            self._stream = torch.cuda.Stream(device)

    @property
    def bytes(self) -> int:
        """Size of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def copy(self) -> None:
        """Begin to copy the live tensors as they are now."""
        if self._stream is None:
            with torch.no_grad():
                for local, buffer in self._pairs:
                    buffer.copy_(local)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.no_grad():
            for local, buffer in self._pairs:
                buffer.copy_(local, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(self._stream)

    def wait(self) -> None:
        """Make the current stream wait for the copy: call before anything that changes the live tensors."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def done(self) -> bool:
        """Whether the copy is complete, so that another process may read the buffers."""
        return self._copied is None or self._copied.query()

    def forget(self) -> None:
        """Let go of the live tensors of an attempt that is over; the buffers stay."""
        self._pairs = []

    def release(self) -> None:
        """Unpin and free the buffers. Memory that is freed while pinned makes the next pinning at its address fail."""
        for buffer in self._buffers:
            if self._stream is not None and buffer.numel():
                torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())
        self._buffers, self._pairs, self.staged = [], [], {}


def _fit(buffers: list[torch.Tensor], tensors: list[torch.Tensor]) -> bool:
    return [(b.shape, b.dtype) for b in buffers] == [(t.shape, t.dtype) for t in tensors]


def _shared_buffer(local: torch.Tensor) -> torch.Tensor:
    buffer: torch.Tensor = torch.empty(local.shape, dtype=local.dtype, device="cpu").share_memory_()
    if local.is_cuda and buffer.numel():
        status = torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        if int(status) != 0:
            raise RuntimeError(f"cudaHostRegister of {buffer.nbytes} bytes failed with error {int(status)}")
    return buffer
