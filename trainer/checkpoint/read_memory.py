"""Host memory of the threads that read a checkpoint, pinned where a GPU takes the values from it."""

from __future__ import annotations

import logging
import mmap
import threading

import torch

SMALLEST_BYTES = 1 << 26
"""So large is each thread's memory at least: it is used again and again, and fresh pages cost time."""
PINNED_BYTES = 1 << 28
"""Larger pieces, of single tensors, are not pinned. torch keeps what it has pinned for the next restore in the same
process, and gives it to nobody else: at most this much for each thread, and mostly SMALLEST_BYTES."""
logger = logging.getLogger(__name__)


class ReadMemory:
    """A piece for each thread that asks. pinned: the values are copied to a GPU.

    From ordinary memory a GPU's driver copies by way of pinned memory of its own, on the CPU: 2.3 GB in 648 tensors,
    read by 16 threads from memory onto an H200, take 0.62 s like that and 0.24 s from pinned memory.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._own = threading.local()

    def take(self, size: int) -> memoryview:
        """The calling thread's memory, `size` bytes of it; what it took before is overwritten."""
        memory: memoryview | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < size:
            self._own.memory = None  # the old one goes first
            memory = self._own.memory = self._new(max(size, SMALLEST_BYTES))
        return memory[:size]

    def _new(self, size: int) -> memoryview:
        if self._pinned and size <= PINNED_BYTES:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().data
            except RuntimeError as error:  # it is faster, not necessary
                self._pinned = False
                logger.warning("restoring by way of memory that is not pinned, %d bytes: %s", size, error)
        return memoryview(mmap.mmap(-1, size))
