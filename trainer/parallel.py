"""How a model is spread over ranks: FSDP2, one unit per transformer block and one for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.config import RunConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


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
    fully_shard(model, mesh=mesh, mp_policy=policy)
