"""First values of parameters and buffers, the same at any world size: each is a function of (seed, name).

The four known families are drawn by one rule. Other families draw their own (norms that count from zero, decays,
scaled projections): their initializer runs on whole parameters, module by module, each from a generator seeded by the
name of the module, and every rank keeps its part. Memory above the shards: one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.config import ConfigError, Problem
from trainer import parallel, seeds

if TYPE_CHECKING:
    import torch
    from torch import nn

_PROJECTION_INTO_RESIDUAL = "c_proj.weight"
"""GPT-2 draws these narrower, so that the residual stream does not grow with depth."""
_FILLED = "_is_hf_initialized"
"""transformers' mark on a tensor that its initializers must leave alone."""
_UNKNOWN = "start from model.weights, or use a family whose initializer sets it"


class NotComputed(Exception):
    """A buffer that this version of transformers does not compute by itself. Holds its dotted name."""


def restore_buffers(model: nn.Module, *, loaded_later: bool) -> None:
    """Compute what is neither trained nor saved (rotary frequencies): it had no values on the meta device.

    The family's own initializer does it, as when transformers loads a model. Raises NotComputed wherever it does not: a
    wrong rotary table trains, badly. loaded_later: a checkpoint or weights follow, with the buffers that are saved.
    Parameters are left alone.
    """
    import torch

    saved = set(model.state_dict()) if loaded_later else set()
    with torch.no_grad(), _left_alone(list(model.parameters())):
        for module, owner, prefix in _modules(model):
            buffers = {f"{prefix}{key}": buffer for key, buffer in module.named_buffers(recurse=False)}
            if not buffers:
                continue
            results = []
            for stand_in in (math.nan, 0.0):  # whatever still holds it has not been computed
                for buffer in buffers.values():
                    buffer.fill_(stand_in if buffer.is_floating_point() else bool(stand_in))
                owner._init_weights(module)  # type: ignore[operator]
                results.append({name: buffer.clone() for name, buffer in buffers.items()})
            first, second = results
            for name in sorted(buffers.keys() - saved):
                if not first[name].equal(second[name]):  # NaN equals nothing
                    raise NotComputed(name)


def leave_empty(model: nn.Module) -> None:
    """NaN in every parameter, for a model whose values come later: none that is missed can go unnoticed."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            own_part(parameter).fill_(math.nan)


def draw(model: nn.Module, seed: int) -> None:
    """Values for one of the known families: normal for matrices, one for weights of norms, zero for biases, as they do.
    Memory above the shards: one whole parameter at a time."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _assign(parameter, _drawn(model, name, parameter, seed))


def draw_as_the_family_does(model: nn.Module, seed: int) -> None:
    """Values from the model's own initializer. Raises ConfigError if it leaves a parameter without any."""
    import torch
    from transformers.initialization import guard_torch_init_functions

    device = next(model.parameters()).device
    sharded = list(model.parameters())
    forked = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=forked), guard_torch_init_functions(), _left_alone(sharded):
        for unit in _units(model):
            with _whole([module for module, _, _ in unit], device) as pairs:
                for module, owner, prefix in unit:
                    torch.manual_seed(seeds.derive(seed, "weight", prefix))
                    owner._init_weights(module)  # type: ignore[operator]
                _require_values(model, pairs)
                for parameter, full in pairs:
                    _assign(parameter, full)


def own_part(parameter: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies on this rank, to be written in place."""
    from torch.distributed.tensor import DTensor

    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


_Place = tuple["nn.Module", "nn.Module", str]
"""A module, the transformers model whose initializer is in charge of it, and the prefix of its parameters' names."""


def _modules(module: nn.Module, owner: nn.Module | None = None, prefix: str = "") -> Iterator[_Place]:
    """Children before their parents, the order in which transformers initializes: a parent may correct a child."""
    from transformers import PreTrainedModel

    owner = module if owner is None or isinstance(module, PreTrainedModel) else owner
    for name, child in module.named_children():
        yield from _modules(child, owner, f"{prefix}{name}.")
    yield module, owner, prefix


def _units(model: nn.Module) -> Iterator[list[_Place]]:
    """Modules that are initialized together: each block, within which parents may correct children; all others alone.

    A parent of blocks cannot correct what lies in them: its initializer finds their parameters marked as filled.
    """
    places = list(_modules(model))
    inside = {id(part): index for index, block in enumerate(parallel.blocks(model)) for part in block.modules()}
    together: dict[int, list[_Place]] = {}
    for place in places:
        if id(place[0]) in inside:
            together.setdefault(inside[id(place[0])], []).append(place)
    yield from together.values()
    yield from ([place] for place in places if id(place[0]) not in inside)


@contextmanager
def _whole(modules: list[nn.Module], device: torch.device) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Whole parameters full of NaN in the place of the modules' own, and then those again. Pairs of (own, whole)."""
    import torch

    own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    places = [(module, key) for module in modules for key, value in module._parameters.items() if value is not None]
    originals = [module._parameters[key] for module, key in places]
    for (module, key), value in zip(places, originals, strict=True):
        assert value is not None
        full = torch.full(value.shape, math.nan, dtype=value.dtype, device=device)
        pair = own.setdefault(id(value), (value, torch.nn.Parameter(full, requires_grad=False)))
        module._parameters[key] = pair[1]  # type: ignore[assignment]
    try:
        yield list(own.values())
    finally:
        for (module, key), value in zip(places, originals, strict=True):
            module._parameters[key] = value


@contextmanager
def _left_alone(tensors: list[nn.Parameter]) -> Iterator[None]:
    for tensor in tensors:
        setattr(tensor, _FILLED, True)
    try:
        yield
    finally:
        for tensor in tensors:
            delattr(tensor, _FILLED)


def _require_values(model: nn.Module, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    empty = [names[id(parameter)] for parameter, full in pairs if not full.isfinite().all()]
    if empty:
        family = getattr(model.config, "model_type", "")
        why = f"transformers gives {empty[0]} of model_type={family!r} no first value"
        raise ConfigError([Problem("model.config", empty[0], why, _UNKNOWN)], "model")


def _drawn(model: nn.Module, name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
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
    own_part(parameter).copy_(full)
