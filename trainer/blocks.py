"""How the forward pass of each transformer block runs: what backward computes again, and whether it is compiled.

Each block gets another `forward`, and nothing else changes: names of parameters and modules stay, and with them
checkpoints. Hooks (FSDP's, the straggler's clock) run around it, outside of compiled code.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import ConfigError, Problem
from holdfast.config.schema import Training

if TYPE_CHECKING:
    from torch import nn

Forward = Callable[..., Any]


def prepare(blocks: list[nn.Module], training: Training) -> None:
    """Do to each block what the config says. Call before the blocks are sharded. Raises ConfigError if they are to be
    compiled and nothing here can."""
    import torch

    if training.compile:
        _require_compiler()
    faster = _prefers_cudnn()
    for block in blocks:
        forward: Forward = _cudnn_first(block.forward) if faster else block.forward
        if training.activation_checkpointing != "none":
            forward = _checkpointed(forward, selective=training.activation_checkpointing == "selective")
        if training.compile:
            forward = torch.compile(forward)
        if forward is not block.forward:
            block.forward = forward


def _require_compiler() -> None:
    """Triton and torch's inductor compile C in the first step; that is late to learn that they cannot."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    header = Path(sysconfig.get_path("include"), "Python.h")
    missing = [] if any(map(shutil.which, wanted)) else [f"a C compiler ({' or '.join(wanted)}) on PATH"]
    missing += [] if header.exists() else [f"{header}"]
    if missing:
        why = f"torch.compile needs what is not here: {', '.join(missing)}"
        remedy = "use this project's Dockerfile, which installs both, or training.compile: false"
        raise ConfigError([Problem("training.compile", True, why, remedy)])


def _prefers_cudnn() -> bool:
    """Whether cuDNN's attention is the fastest of torch's: on Hopper and later it uses instructions of these GPUs that
    the flash attention that comes with torch does without, and torch itself asks for it last."""
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def _cudnn_first(forward: Forward) -> Forward:
    """Attention in `forward` is cuDNN's where it can do what is asked for, else the next one's that can."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]

    def run(*args: Any, **keywords: Any) -> Any:
        with sdpa_kernel(order, set_priority=True):
            return forward(*args, **keywords)

    return run


def _checkpointed(forward: Forward, *, selective: bool) -> Forward:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    contexts: dict[str, Any] = {}
    if selective:
        contexts = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)}

    def run(*args: Any, **keywords: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **contexts, **keywords)

    return run


def _policy(_context: Any, operation: Any, *_: Any, **__: Any) -> Any:
    """Keep what costs arithmetic, compute the rest again: norms, activations, rotations and casts are bound by memory
    and hold most of what a block would keep."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE if operation in _costly() else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _costly() -> frozenset[Any]:
    """Matrix products, and what torch's attention becomes on a GPU and on a CPU."""
    import torch

    aten = torch.ops.aten
    return frozenset(
        operation.default
        for operation in (
            aten.mm,
            aten.addmm,
            aten.bmm,
            aten._scaled_dot_product_flash_attention,
            aten._scaled_dot_product_efficient_attention,
            aten._scaled_dot_product_cudnn_attention,
            aten._scaled_dot_product_flash_attention_for_cpu,
        )
    )
