"""`python -m bench.arms.memory_rank ORDER`: one rank of one setting of bench.memory.

Rank 0 prints what all have measured. Steps are the trainer's own train_step, on its own model, parallelism and
optimizer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bench.arms.leaving import leave_after
from bench.arms.silent import Silent
from bench.memory_spec import STEPS, Order
from holdfast.config import RunConfig
from trainer import train as training
from trainer.data.documents import positions_of

DOCUMENT_TOKENS = 500


class Tokens:
    """Stands where the trainer has its dataset: which tokens they are changes no size."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._shape = (config.training.micro_batch_size, config.data.sequence_length)

    def batch(self, *_: Any, **__: Any) -> torch.Tensor:
        """int64 [micro_batch, sequence + 1], in host memory."""
        samples, length = self._shape
        return torch.randint(self._config.model.vocab_size, (samples, length + 1))

    def positions(self, *_: Any, **__: Any) -> torch.Tensor | None:
        """int64 [micro_batch, sequence] if attention is to stay within documents."""
        if not self._config.data.document_masks:
            return None
        samples, length = self._shape
        sample = positions_of(length, np.arange(DOCUMENT_TOKENS, length, DOCUMENT_TOKENS))
        return torch.from_numpy(sample).repeat(samples, 1)


def measured(device: torch.device) -> dict[str, int]:
    """Bytes: of tensors at most, of what the allocator took from the driver at most, and all that is taken of the GPU
    now, by whatever. Nothing of it on a CPU."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
        "used": total - free,
        "total": total,
    }


def main() -> None:
    """Make the steps and say what they took."""
    order = Order.from_json(sys.argv[1])
    config, rank = order.config, int(os.environ["RANK"])
    from trainer.imports import import_training_stack

    import_training_stack(config.model.family)
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from trainer import optimizer as optimizers
    from trainer.checkpoint.state import prepare_optimizer
    from trainer.model import build
    from trainer.runtime import Attempt, Identity, device_of, process_group

    silent, world = cast(Any, Silent()), config.world_size
    identity = Identity(rank, world, rank, 0, 0, "", "", "")
    device = device_of(config, rank)
    with process_group(config, identity, Attempt(0, 0, 0), silent):
        model = build(config, device, init_device_mesh(device.type, (world,)))
        optimizer = optimizers.build_optimizer(model, config)
        prepare_optimizer(model, optimizer)
        survivors = training.Survivors(config, identity, silent, Path(), silent, silent, silent, silent)
        tokens = cast(Any, Tokens(config))
        parts = training.Parts(model, optimizer, tokens, silent, silent, silent, device, silent)
        for step in range(1, STEPS + 1):
            training.train_step(step, survivors, parts)
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, measured(device))
        if rank == 0:
            name = torch.cuda.get_device_name(device) if order.cuda else ""
            print(json.dumps({"gpu": name, "torch": torch.__version__, "ranks": everyone}), flush=True)


if __name__ == "__main__":
    leave_after(main)
