"""A Hugging Face causal language model, built from the config on every rank without any rank ever holding all of it.

Structure on the meta device (architecture.py), then sharding, then memory, then values: random ones (initial.py), those
of a checkpoint, or the weights of a folder (weights_load.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.config import RunConfig
from holdfast.config.model import OTHER
from trainer import blocks, initial, loss, parallel
from trainer.architecture import hugging_face_settings, on_meta, require_window_kept
from trainer.model_folder import unusable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["build", "hugging_face_settings", "loss_of", "on_meta"]

logger = logging.getLogger(__name__)


def build(
    config: RunConfig, device: torch.device, mesh: DeviceMesh | None = None, *, initialize: bool = True
) -> nn.Module:
    """The model in training mode on `device`, its float32 parameters sharded over `mesh` (None: whole and plain).

    initialize: False leaves NaN in every parameter, for a caller that restores a checkpoint into all of them: drawing
    weights only to overwrite them costs a restart time, and a weight that the checkpoint misses cannot go unnoticed.
    With model.weights it is always so: weights_load.begin or a checkpoint follows. Raises ConfigError.
    """
    model = on_meta(config.model, config.data.sequence_length)
    require_window_kept(config, model.config)
    ties = _ties(model)
    loss.compute_inside(model, config.training.loss_chunk_tokens, whole_forward=config.model.family == OTHER)
    if config.model.family == OTHER and (mesh is None or mesh.get_rank() == 0):
        logger.info("%s", parallel.description(model))
    blocks.prepare(parallel.blocks(model), config.training)
    if mesh is not None:
        parallel.shard(model, mesh, config)
    model.to_empty(device=device)
    _tie(model, ties)
    _fill(model, config, initialize and config.model.weights is None)
    return model.train()


def loss_of(model: nn.Module, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """Mean cross entropy of predicting each next token, a float32 scalar.

    tokens: int64 [samples, sequence_length + 1], on the model's device. positions: int64 [samples, sequence_length], of
    each input token within its document (trainer/data/documents.py): attention then stays within documents. It takes a
    mask of sequence_length squared bytes per sample.
    """
    packed = {}
    if positions is not None:
        from trainer.data.documents import attention_mask

        packed = {"position_ids": positions, "attention_mask": attention_mask(positions)}
    mean: torch.Tensor = model(input_ids=tokens[:, :-1], targets=tokens[:, 1:], **packed)
    return mean


def _fill(model: nn.Module, config: RunConfig, initialize: bool) -> None:
    try:
        initial.restore_buffers(model, loaded_later=not initialize)
    except initial.NotComputed as buffer:
        why = f"this version of transformers does not compute the buffer {buffer} itself"
        if config.model.folder is None:
            raise RuntimeError(why) from None
        raise unusable(*config.model.folder, why, "use another version of transformers, or another model") from None
    if not initialize:
        initial.leave_empty(model)
    elif config.model.family == OTHER:
        initial.draw_as_the_family_does(model, config.seed)
    else:
        initial.draw(model, config.seed)


def _ties(model: nn.Module) -> dict[str, str]:
    """Name of each parameter that is another one's twin -> name of that other one."""
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            ties[name] = owner
    return ties


def _tie(model: nn.Module, ties: dict[str, str]) -> None:
    """Make twins one again: moving a module off the meta device gives every name a parameter of its own."""
    for twin, owner in ties.items():
        module, _, name = twin.rpartition(".")
        setattr(model.get_submodule(module), name, model.get_parameter(owner))
