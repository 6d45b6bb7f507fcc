"""A rank's own time of a step: the time in which it waits for no other rank.

Ranks meet in every collective, so a step takes equally long on all of them, and so does each part of it that holds a
collective: there the ones that wait look slow. Own are two parts. On the host, everything outside of the forward pass,
the backward pass and the reduction of the norm: data, injected faults, the update on a CPU, training.min_step_s. On the
device, the forward passes of the blocks, between the moment at which a block's parameters are there and its end; the
backward pass, which the same device does, is taken for twice that. On a GPU they are timed by events in the stream of
the computation, behind its wait for the parameters. They are read when the numbers of the step have been read, which
come later in the same stream: the host waits for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

PASSES = 3.0
"""Forward and backward pass, in units of the forward pass."""


@dataclass(frozen=True)
class StepTime:
    """Of one step on one rank, in seconds. own_s: without waits for others. step_s: with them."""

    own_s: float
    step_s: float


class OwnTime:
    """One per attempt. `with own.step():` around a step, `with own.apart():` around what is not the host's own in it,
    then `last`.
    """

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device) -> None:
        """blocks: modules that need no collective once their forward pass has begun. After they were sharded: the hooks
        made here must come after those that gather the parameters."""
        self._computes = _DeviceClock() if device.type == "cuda" else _HostClock()
        self._apart_s = 0.0
        self._in_step = False
        self.last: StepTime | None = None
        """Of the step that ended last; None if it could not be measured."""
        for block in blocks:
            block.register_forward_pre_hook(self._begins)
            block.register_forward_hook(self._ends, prepend=True)  # what follows lets go of the parameters

    def _begins(self, *_: Any) -> None:
        if self._in_step:  # an evaluation calls the same blocks
            self._computes.begin()

    def _ends(self, *_: Any) -> None:
        if self._in_step:
            self._computes.end()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The body is one step."""
        self.last, self._apart_s = None, 0.0
        self._computes.forget()
        start, self._in_step = time.monotonic(), True
        yield
        self._in_step = False
        step_s = time.monotonic() - start
        computed_s = self._computes.read()
        if computed_s is not None:
            self.last = StepTime(step_s - self._apart_s + PASSES * computed_s, step_s)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The host may wait for others, or for the device, in the body."""
        start = time.monotonic()
        yield
        self._apart_s += time.monotonic() - start


class _HostClock:
    """Intervals of this thread."""

    def __init__(self) -> None:
        self._began = 0.0
        self._sum = 0.0

    def forget(self) -> None:
        self._sum = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self) -> None:
        self._sum += time.monotonic() - self._began

    def read(self) -> float | None:
        return self._sum


class _DeviceClock:
    """Intervals between two points of the device's present stream. Events are made once and used in every step."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def forget(self) -> None:
        self._used = 0

    def begin(self) -> None:
        self._used -= self._used % 2  # a forward pass that an exception has ended has no end
        self._record()

    def end(self) -> None:
        self._record()

    def _record(self) -> None:
        import torch

        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[self._used].record()
        self._used += 1

    def read(self) -> float | None:
        """None if the device has not come so far: asked for, it would make the host wait."""
        used = self._events[: self._used // 2 * 2]
        if used and not used[-1].query():
            return None
        pairs = zip(used[::2], used[1::2], strict=True)
        return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1000
