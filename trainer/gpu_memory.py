"""Whether a step fits into this rank's GPU, asked before the model is built: out of memory in the middle of the first
step looks like a crash, and layers 1 and 2 would try it again and again.

Only where `holdfast check` cannot know: it has asked where the instance type says how much memory its GPUs have.
"""

from __future__ import annotations

import logging

from holdfast.checkpoint_folder import look
from holdfast.config import ConfigError, RunConfig
from holdfast.config.gpu_memory import problem
from holdfast.run_directory import RunDirectory
from trainer.runtime import device_of

logger = logging.getLogger(__name__)


def require_room(config: RunConfig, run: RunDirectory, world_size: int, local_rank: int) -> None:
    """Raises ConfigError if the predicted peak of one of so many ranks does not fit. A run that has committed a step
    has shown more than a formula can say, and is not ended by one."""
    if config.device != "cuda" or config.instance.gpu_memory_gib:
        return
    import torch

    gpu = torch.cuda.get_device_properties(device_of(config, local_rank))
    found = problem(config, gpu.total_memory, f"This rank's GPU ({gpu.name})", world_size)
    if found is None:
        return
    if config.training.accept_gpu_memory or look(run.checkpoints).committed:
        logger.warning("%s", found)
    else:
        raise ConfigError([found], "memory")
