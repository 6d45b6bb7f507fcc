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
    """Shared host buffers, one per distinct live tensor."""

    def __init__(self, live: dict[str, torch.Tensor]) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.staged: dict[str, torch.Tensor] = {}
        by_identity: dict[int, torch.Tensor] = {}
        for name, tensor in live.items():
            local = local_part(tensor)
            key = id(tensor)
            if key not in by_identity:  # tied weights appear under two names and are copied once
                buffer = _shared_buffer(local)
                by_identity[key] = buffer
                self._pairs.append((local, buffer))
            self.staged[name] = by_identity[key]
        self.bytes = sum(buffer.nbytes for _, buffer in self._pairs)
        cuda = next((local.device for local, _ in self._pairs if local.is_cuda), None)
        self._stream = torch.cuda.Stream(cuda) if cuda is not None else None
        self._copied: torch.cuda.Event | None = None

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

    def release(self) -> None:
        """Unpin the buffers."""
        for _, buffer in self._pairs:
            if self._stream is not None and buffer.numel():
                torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())
        self._pairs.clear()
        self.staged.clear()


def _shared_buffer(local: torch.Tensor) -> torch.Tensor:
    buffer: torch.Tensor = torch.empty(local.shape, dtype=local.dtype, device="cpu").share_memory_()
    if local.is_cuda and buffer.numel():
        status = torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        if int(status) != 0:
            raise RuntimeError(f"cudaHostRegister of {buffer.nbytes} bytes failed with {status}")
    return buffer
