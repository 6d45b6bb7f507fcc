"""What a checkpoint holds: tensors by dotted name, in torch DCP layout, and a description in JSON beside them.

Names are those that stock `torch.distributed.checkpoint` gives to {"model": ..., "optimizer": {"state": ...}}, so that
`dcp.load` reads a Holdfast checkpoint without Holdfast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from holdfast.config import RunConfig
from holdfast.config.fields import field_at
from trainer.runtime import Attempt

SCHEMA = 1
IRRELEVANT = {"training.activation_checkpointing", "training.compile", "training.loss_chunk_tokens",
    "training.min_step_s", "training.micro_batch_size", "training.reduce_gradients",
    "training.accept_gpu_memory", "model.dtype",
    "model.weights", "model.config", "training.evaluate_every_steps", "training.evaluation_samples",
    "data.path", "data.limit_mib", "data.mixture", "data.validation_fraction", "data.validation_path",
    "data.prepare", "data.token_secret",
}  # fmt: skip
"""Keys of the compared sections whose change does not make it another experiment. Data is compared by fingerprint, and
that follows the shares of a mixture and what is held out too; a folder of weights by what its config.json says
(model.settings): a run that has a checkpoint does not read the weights again."""


def live_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Dotted name -> the tensor that training uses (DTensor for shards). Values change with every step.

    The optimizer must have state, i.e. have made a step or been through `prepare_optimizer`.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.state.{name}.{key}"] = value
    return tensors


def prepare_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give a fresh optimizer the state that its first step would create, so that saves can be planned and a checkpoint
    loaded before any step is made. Weights do not change."""
    get_optimizer_state_dict(model, optimizer)  # for its side effect: torch makes a step with zero gradients and rate 0
    for values in optimizer.state.values():
        values["step"].zero_()


def description(
    config: RunConfig, attempt: Attempt, step: int, learning_rate: float, fingerprint: str, world_size: int
) -> dict[str, Any]:
    """The JSON beside the tensors. world_size: ranks of this attempt, which may be fewer than the config's. Random
    numbers are a pure function of (seed, step, rank), so their state is named, not stored; the same holds for the order
    of samples.
    """
    return {
        "schema": SCHEMA,
        "step": step,
        "attempt": str(attempt),
        "generation": attempt.generation,
        "world_size": world_size,
        "torch": torch.__version__,
        "learning_rate": learning_rate,
        "rng": {"scheme": "counter", "seed": config.seed, "next_step": step + 1},
        "data_fingerprint": fingerprint,
        "samples_seen": step * config.training.global_batch_size,
        "config": config.model_dump(mode="json"),
    }


def differing_keys(saved: dict[str, Any], config: RunConfig, fingerprint: str) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (saved, now) for everything that makes this another experiment and is not allowed to change."""
    then, now = (
        compared(saved["config"], saved["data_fingerprint"]),
        compared(config.model_dump(mode="json"), fingerprint),
    )
    # A key that the version which saved did not have counts as its default.
    then = {key: _default(key) for key in now} | then
    differing = {
        key: (then.get(key), now.get(key)) for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)
    }
    allowed = config.resume.allow_changes
    return {
        key: pair for key, pair in differing.items() if not any(key == a or key.startswith(f"{a}.") for a in allowed)
    }


def _default(key: str) -> Any:
    field = field_at(key.split("."))
    return None if field is None or field.is_required() else field.get_default(call_default_factory=True)


def compared(config: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """Dotted key -> value of everything that makes two runs the same experiment; config is a dumped RunConfig."""
    values = {"seed": config["seed"], "data.fingerprint": fingerprint}
    for section in ("model", "data", "training"):
        for key, value in config[section].items():
            if f"{section}.{key}" not in IRRELEVANT:
                values[f"{section}.{key}"] = value
    return values
