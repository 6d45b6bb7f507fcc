"""Whether a step fits into this rank's GPU, asked before the model is built: out of memory in the middle of the first
step looks like a crash, and layers 1 and 2 would try it again and again.

`holdfast check` asks the same where the instance type says how much memory its GPUs have; this GPU says it itself.
"""

from __future__ import annotations

from holdfast.config import ConfigError, RunConfig
from holdfast.config.gpu_memory import problem
from trainer.runtime import device_of


def require_room(config: RunConfig, world_size: int, local_rank: int) -> None:
    """Raises ConfigError if the predicted peak of one of so many ranks does not fit."""
    if config.device != "cuda":
        return
    import torch

    gpu = torch.cuda.get_device_properties(device_of(config, local_rank))
    found = problem(config, gpu.total_memory, f"This rank's GPU ({gpu.name})", world_size)
    if found is not None:
        raise ConfigError([found], "memory")
