"""The staged segments of a rank seen as one run of bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch


class FlatBytes:
    """Some flat uint8 CPU tensors, one behind the other. Views share their memory; nothing is copied."""

    def __init__(self, segments: Sequence[torch.Tensor]) -> None:
        """Raises ValueError for a tensor that is not contiguous bytes in host memory."""
        for index, segment in enumerate(segments):
            if segment.dtype != torch.uint8 or segment.dim() != 1 or segment.is_cuda or not segment.is_contiguous():
                raise ValueError(
                    f"segment {index} is {segment.dtype} of shape {tuple(segment.shape)} on {segment.device}: "
                    "a segment is a contiguous uint8 vector in host memory"
                )
        self._segments = [segment for segment in segments if segment.numel()]
        self._starts = [0, *accumulate(segment.numel() for segment in self._segments)]

    @property
    def bytes(self) -> int:
        """Bytes in all."""
        return self._starts[-1]

    def tensors(self, offset: int, count: int) -> list[torch.Tensor]:
        """The pieces of the segments that make up `count` bytes from `offset`, in order."""
        if offset < 0 or count < 0 or offset + count > self.bytes:
            raise ValueError(f"bytes {offset} to {offset + count} do not lie in {self.bytes} bytes")
        pieces = []
        while count:
            index = bisect_right(self._starts, offset) - 1
            start = offset - self._starts[index]
            piece = self._segments[index][start : start + count]
            pieces.append(piece)
            offset += piece.numel()
            count -= piece.numel()
        return pieces

    def views(self, offset: int, count: int) -> list[memoryview]:
        """The same pieces as writable memory, for files, sockets and checksums."""
        return [piece.numpy().data for piece in self.tensors(offset, count)]

    def blocks(self, size: int) -> Iterator[list[memoryview]]:
        """All bytes in blocks of `size`; the last one may be short."""
        for offset in range(0, self.bytes, size):
            yield self.views(offset, min(size, self.bytes - offset))
