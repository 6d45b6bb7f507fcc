"""A Hugging Face causal language model, built from the config on every rank without any rank ever holding all of it.

Structure on the meta device, then sharding, then memory, then values. Every weight is drawn from a generator seeded by
(seed, name of the weight), so the model is the same at any world size and without sharding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.config import RunConfig
from holdfast.config.schema import Model
from trainer import blocks, loss, parallel, seeds
from trainer.imports import model_classes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

ATTENTION = "holdfast_causal_sdpa"
"""torch's scaled-dot-product attention, causal by itself. With its plain name "sdpa", transformers 5 looks in every
forward pass whether a mask is needed, which reads one value back from the GPU: the host then waits behind a staging
copy of many gigabytes (measured: 0.30 s per save, the whole copy), and at any other time for the GPU to run dry."""
_PROJECTION_INTO_RESIDUAL = "c_proj.weight"
"""GPT-2 draws these narrower, so that the residual stream does not grow with depth."""


def build(
    config: RunConfig, device: torch.device, mesh: DeviceMesh | None = None, *, initialize: bool = True
) -> nn.Module:
    """The model in training mode on `device`, its float32 parameters sharded over `mesh` (None: whole and plain).

    initialize: False leaves NaN in every parameter, for a caller that restores a checkpoint into all of them: drawing
    weights only to overwrite them costs a restart time, and a weight that the checkpoint misses cannot go unnoticed.
    Memory above the shard: one whole parameter at a time.
    """
    model = on_meta(config.model)
    ties = _ties(model)
    loss.compute_inside(model, config.training.loss_chunk_tokens)
    blocks.prepare(parallel.blocks(model), config.training)
    if mesh is not None:
        parallel.shard(model, mesh, config)
    model.to_empty(device=device)
    _tie(model, ties)
    _restore_buffers(model)
    _fill_parameters(model, config.seed if initialize else None)
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
    mean: torch.Tensor = model(input_ids=tokens[:, :-1], targets=tokens[:, 1:], use_cache=False, **packed)
    return mean


def hugging_face_settings(model: Model) -> dict[str, Any]:
    """Arguments of the family's transformers config class."""
    common: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        "attn_implementation": ATTENTION,
        "use_cache": False,
        # The defaults of some families lie outside small vocabularies; training on a token stream needs none of them.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if model.family == "gpt2":
        return common | {
            "n_embd": model.hidden_size,
            "n_inner": model.intermediate_size,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_positions": model.max_positions,
            "attn_pdrop": model.dropout,
            "resid_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
        }
    settings = common | {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_dropout": model.dropout,
    }
    if model.family == "mistral":
        settings["sliding_window"] = None  # its default would silently cut attention at 4096 tokens
    return settings


def on_meta(model: Model) -> nn.Module:
    """The model's structure: names and shapes, no memory for its weights. The only place where one is made, since
    transformers refuses an attention that has not been registered in this process."""
    import torch

    configuration, causal_lm = model_classes(model.family)
    _register_attention()
    with torch.device("meta"):
        built: nn.Module = causal_lm(configuration(**hugging_face_settings(model)))
    return built


def _register_attention() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)  # no mask function of that name: no mask is made


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


def _restore_buffers(model: nn.Module) -> None:
    """Compute what is neither trained nor saved (rotary frequencies): it had no values on the meta device.

    The family's own initializer does it, as when transformers loads a model. NaN stands in wherever it might not, and
    is refused: a wrong rotary table trains, badly. Must run before the parameters get their values.
    """
    import torch

    with torch.no_grad():
        for name, module in model.named_modules():
            buffers = dict(module.named_buffers(recurse=False))
            if not buffers:
                continue
            for buffer in buffers.values():
                buffer.fill_(math.nan)
            model._init_weights(module)  # type: ignore[operator]
            for key, buffer in buffers.items():
                if buffer.isnan().any():
                    raise RuntimeError(f"{name}.{key}: this version of transformers does not compute the buffer itself")


def _fill_parameters(model: nn.Module, seed: int | None) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if seed is None:
                _own_part(parameter).fill_(math.nan)
            else:
                _assign(parameter, _initial_values(model, name, parameter, seed))


def _initial_values(model: nn.Module, name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
    """The whole parameter: normal for matrices, one for the weights of norms, zero for biases, as the families do."""
    import torch

    full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    if parameter.ndim < 2:
        return full.fill_(1.0 if name.endswith("weight") else 0.0)
    settings: Any = model.config
    deviation: float = settings.initializer_range
    if name.endswith(_PROJECTION_INTO_RESIDUAL):
        deviation /= math.sqrt(2 * settings.num_hidden_layers)
    return full.normal_(0.0, deviation, generator=seeds.generator(parameter.device, seed, "weight", name))


def _assign(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Copy this rank's part of `full` into the parameter. No communication: every rank has drawn the same `full`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
    _own_part(parameter).copy_(full)


def _own_part(parameter: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
