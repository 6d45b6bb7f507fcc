"""How a model is spread over ranks: FSDP2, a unit for each block, each of two large tables, and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.config import RunConfig
from holdfast.config.model import OTHER

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks, in order: the members of the ModuleList that holds the most parameters.

    One rule for every family, known or not; a model without a ModuleList has no blocks and becomes one unit.
    """
    from torch import nn

    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        return []
    largest = max(stacks, key=lambda stack: sum(parameter.numel() for parameter in stack.parameters()))
    return list(largest)


def description(model: nn.Module) -> str:
    """How a model of any family is cut into units, in words."""
    from torch import nn

    found = blocks(model)
    name = next(
        (
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and found and list(module) == found
        ),
        None,
    )
    kind = getattr(model.config, "model_type", type(model).__name__)
    if name is None:
        return f"model_type={kind}: it has no ModuleList, so all of it is one unit"
    kinds = ", ".join(sorted({type(block).__name__ for block in found}))
    return f"model_type={kind}: {len(found)} blocks ({kinds}), the members of {name}, its largest ModuleList"


def reduce_at(model: nn.Module, config: RunConfig, micro: int, passes: int) -> None:
    """Say before backward of pass `micro` (from 0) of so many whether it ends with the reduction over ranks."""
    if passes > 1 and config.training.reduce_gradients == "last_pass":
        sharded: Any = model
        sharded.set_requires_gradient_sync(micro == passes - 1)


def shard(model: nn.Module, mesh: DeviceMesh, config: RunConfig) -> None:
    """Turn the parameters into shards along the mesh, in place; gradients are averaged over it.

    Master weights stay float32. With model.dtype bfloat16, forward and backward compute in bfloat16 and gradients are
    reduced in float32: a sum of many ranks in bfloat16 would lose the small ones.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if config.model.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    if config.model.family != OTHER:
        _shard_tables(model, mesh, policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _shard_tables(model: Any, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Make units of the input embeddings and the output layer, so that each is gathered only where it is at work, and
    the output layer is reduced while blocks compute. One table for both is at work at both ends of a pass: it stays in
    the unit of the whole. A family that is not known may use its tables outside of their modules."""
    from torch.distributed.fsdp import fully_shard

    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    if embeddings.weight is output.weight:
        return
    fully_shard(embeddings, mesh=mesh, mp_policy=policy)
    embeddings.set_unshard_in_backward(False)  # which tokens there were is all that its gradient needs
    fully_shard(output, mesh=mesh, mp_policy=policy, reshard_after_forward=False)  # its backward follows at once
