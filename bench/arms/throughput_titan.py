"""torchtitan's own Trainer and train step on its own Llama of the same shape, with the settings that its published
benchmarks use: blocks and loss compiled, selective checkpointing by operation, cuDNN's attention first.

Nothing of it is changed. Only its data loader and tokenizer are left out, for synthetic tokens in host memory.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from bench.arms.throughput_arm import Arm, Tokens
from bench.throughput_spec import Spec

NAME = "throughput_bench"


class Titan(Arm):
    """For version 0.2.2, the last one whose models run on a released torch 2.11."""

    def __init__(self, spec: Spec, rank: int) -> None:
        super().__init__(spec, rank)
        if not spec.cuda:
            _import_without_gpu()
        specs: Any = importlib.import_module("torchtitan.protocols.train_spec")
        specs.register_train_spec(NAME, _train_spec(spec, Tokens(spec, rank)))
        self._trainer: Any = importlib.import_module("torchtitan.train").Trainer(_config(spec))
        self._batches = self._trainer.batch_generator(self._trainer.dataloader)
        self._losses: list[torch.Tensor] = []
        inner = self._trainer.forward_backward_step

        def kept(**keywords: Any) -> torch.Tensor:
            loss: torch.Tensor = inner(**keywords)
            self._losses.append(loss.detach())
            return loss

        self._trainer.forward_backward_step = kept

    def step(self) -> torch.Tensor:
        # As Trainer.train does it.
        self._losses.clear()
        self._trainer.step += 1
        self._trainer.gc_handler.run(self._trainer.step)
        self._trainer.train_step(self._batches)
        return torch.stack(self._losses).sum() * self.spec.world  # each is this rank's part of the mean over ranks

    def settings(self) -> dict[str, Any]:
        return {"reduce": "float32", "master": "float32", "optimizer": "AdamW, fused", "attention": "cuDNN first"}


class Loader:
    """Stands where it has its data loader."""

    def __init__(self, spec: Spec, tokens: Tokens) -> None:
        self._spec = spec
        self._tokens = tokens

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        step = 0
        while True:
            for micro in range(self._spec.passes):
                batch = self._tokens.batch(step, micro)
                batch = batch.pin_memory() if self._spec.cuda else batch
                yield {"input": batch[:, :-1]}, batch[:, 1:]
            step += 1

    def state_dict(self) -> dict[str, Any]:
        """Nothing is saved."""
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing is loaded."""


def _train_spec(spec: Spec, tokens: Tokens) -> Any:
    llama3: Any = importlib.import_module("torchtitan.models.llama3")
    shape = spec.shape
    wide = int(2 * 4 * shape.hidden / 3)
    if wide > shape.intermediate:
        raise ValueError(f"its feed-forward layer is at least {wide} wide, not {shape.intermediate}")
    arguments = llama3.TransformerModelArgs(
        dim=shape.hidden,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        multiple_of=shape.intermediate,  # it rounds its own width, which is smaller, up to a multiple
        rope_theta=shape.rope_theta,
    )
    return dataclasses.replace(
        llama3.get_train_spec(),
        model_args={shape.title: arguments},
        build_tokenizer_fn=None,
        build_dataloader_fn=lambda **_: Loader(spec, tokens),
        build_validator_fn=None,
        state_dict_adapter=None,
    )


def _config(spec: Spec) -> Any:
    trial, config = spec.trial, importlib.import_module("torchtitan.config").JobConfig()
    config.job.dump_folder = spec.folder
    config.model.name, config.model.flavor = NAME, spec.shape.title
    config.training.local_batch_size = trial.micro_batch
    config.training.global_batch_size = spec.shape.samples
    config.training.seq_len = spec.shape.sequence
    config.training.steps = 10**6
    config.activation_checkpoint.mode = trial.checkpointing
    config.activation_checkpoint.selective_ac_option = "op"
    config.compile.enable = trial.compile
    config.metrics.log_freq = 10**9
    config.metrics.disable_color_printing = True
    return config


def _import_without_gpu() -> None:
    """It takes any machine for one with GPUs: tell it otherwise while it looks, which is at its import."""
    device = SimpleNamespace(
        set_device=lambda _: None,
        current_device=lambda: 0,
        get_device_name=lambda _: "cpu",
        get_device_properties=lambda _: SimpleNamespace(total_memory=math.inf),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        memory_stats=lambda _: {},
    )
    with (
        mock.patch("torch._utils._get_available_device_type", lambda: "cpu"),
        mock.patch("torch._utils._get_device_module", lambda _: device),
    ):
        importlib.import_module("torchtitan.train")
