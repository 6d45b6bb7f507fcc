"""Ours: the trainer's own train_step on the trainer's own model, parallelism and optimizer, as its config says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import torch

from bench.arms.silent import Silent
from bench.arms.throughput_arm import Arm, Tokens
from bench.throughput_spec import Spec
from holdfast.config import RunConfig, load_profile
from trainer import train as training

CPU_CHUNK = 32
"""A tiny model's batch is cut into several pieces as well."""


class Dataset:
    """Stands where the trainer has its dataset."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def batch(self, step: int, _rank: int, _world_size: int, *, micro: int) -> torch.Tensor:
        """int64 [micro_batch, sequence + 1], in host memory."""
        return self._tokens.batch(step, micro)

    def positions(self, *_: Any, **__: Any) -> None:
        """Each sample is one document."""


class Holdfast(Arm):
    """What the trainer carries for faults and saves is left out here and measured by bench.ft_cost and
    bench.checkpoint."""

    def __init__(self, spec: Spec, rank: int) -> None:
        super().__init__(spec, rank)
        from trainer.imports import import_training_stack

        self.config = settings(spec)
        import_training_stack(self.config.model.family)
        from torch.distributed.device_mesh import init_device_mesh

        from trainer import optimizer as optimizers
        from trainer.model import build
        from trainer.runtime import Attempt, Identity, device_of, process_group

        silent = cast(Any, Silent())
        identity = Identity(rank, spec.world, rank, 0, 0, "", "", "")
        device = device_of(self.config, rank)
        self.stack.enter_context(process_group(self.config, identity, Attempt(0, 0, 0), silent))
        model = build(self.config, device, init_device_mesh(device.type, (spec.world,)))
        optimizer = optimizers.build_optimizer(model, self.config)
        dataset = cast(Any, Dataset(Tokens(spec, rank)))
        folder = Path(spec.folder)
        self._survivors = training.Survivors(self.config, identity, silent, folder, silent, silent, silent, silent)
        self._parts = training.Parts(model, optimizer, dataset, silent, silent, silent, device, silent)
        self._steps = itertools.count(1)

    def step(self) -> float:
        return training.train_step(next(self._steps), self._survivors, self._parts)

    def settings(self) -> dict[str, Any]:
        return {"reduce": "float32", "master": "float32", "optimizer": "AdamW, fused"}


def settings(spec: Spec) -> RunConfig:
    """The config of the run. Raises ConfigError."""
    shape, trial = spec.shape, spec.trial
    chunk = trial.loss_chunk if spec.cuda or trial.loss_chunk is None else CPU_CHUNK
    model = {name: value for name, value in shape.model.model_dump().items() if name != "dropout"}
    shared = [
        f"model.{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in model.items()
    ]
    shared += [
        "model.dropout=0", f"data.sequence_length={shape.sequence}", "training.steps=1000000000",
        f"training.micro_batch_size={trial.micro_batch}", f"training.global_batch_size={shape.samples}",
        f"training.activation_checkpointing={trial.checkpointing}", f"training.compile={str(trial.compile).lower()}",
        f"training.loss_chunk_tokens={'null' if chunk is None else chunk}",
        "checkpoint.interval_steps=1000000000", "recovery.process_group_timeout_s=80",
    ]  # fmt: skip
    if spec.cuda:
        return load_profile("gpu-local", [f"cluster.ranks_per_node={spec.world}", *shared])
    short = "recovery.process_group_timeout_s=4"
    return load_profile("cpu-test", [f"cluster.nodes={spec.world}", *shared, short])
