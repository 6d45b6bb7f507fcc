"""What the throughput bench asks of an arm, and the tokens that all arms train on."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from bench.throughput_spec import Spec

POOL = 4
"""Steps with different tokens, made once; where tokens come from is not what is measured."""


class Arm:
    """One way of training, on one rank. Built when it is made; it may open what `stack` closes."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        self.stack = ExitStack()
        self.device = torch.device("cuda", torch.cuda.current_device()) if spec.cuda else torch.device("cpu")

    def step(self) -> Any:
        """One update over the global batch; its loss on this rank, if it need not be waited for as a tensor."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What a reader needs to know of it beside the trial."""
        return {}

    def __enter__(self) -> Arm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:  # else peers may be waiting, and closing would wait for them
            self.stack.close()


class Tokens:
    """Synthetic samples in host memory, a pure function of rank, step and pass."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self._passes = spec.passes
        generator = torch.Generator().manual_seed(rank)
        size = (spec.trial.micro_batch, spec.shape.sequence + 1)
        self._pool = [
            torch.randint(spec.shape.vocabulary, size, generator=generator) for _ in range(POOL * spec.passes)
        ]

    def batch(self, step: int, micro: int) -> torch.Tensor:
        """int64 [micro_batch, sequence + 1]."""
        return self._pool[(step * self._passes + micro) % len(self._pool)]
