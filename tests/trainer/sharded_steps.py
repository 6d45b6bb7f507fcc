"""Committed steps of a sharded model, made by hand on several ranks: stock DCP writes them. For `run_ranks`."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from holdfast.config.names import step_folder
from tests.trainer.committed import write_marker
from tests.trainer.saves import config
from trainer.runtime import Attempt

FIRST = Attempt(1, 0, 0)
BLOCK = 2048
"""Bytes per checksum, so that small files have many."""


def live_tensors(world: int) -> dict[str, torch.Tensor]:
    """A small model and its optimizer, sharded. Collective."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from trainer.checkpoint import state

    model = torch.nn.Sequential(torch.nn.Linear(31, 64), torch.nn.Linear(64, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters())
    state.prepare_optimizer(model, optimizer)
    return state.live_tensors(model, optimizer)


def save_steps(rank: int, world: int, run_dir: str) -> None:
    """Steps 5, 10 and 15 by FIRST; all values of a step are its number."""
    import torch.distributed.checkpoint as dcp

    from trainer.checkpoint import state
    from trainer.checkpoint.plan import nested
    from trainer.checkpoint.stage import local_part

    live = live_tensors(world)
    for step in (5, 10, 15):
        for tensor in live.values():
            local_part(tensor).fill_(float(step))
        folder = Path(run_dir) / "checkpoints" / step_folder(step)
        dcp.save(nested(live), storage_writer=dcp.FileSystemWriter(folder, thread_count=2))
        if rank == 0:
            description = state.description(config(), FIRST, step, 0.1, "data", world)
            (folder / "state.json").write_text(json.dumps(description))
            write_marker(folder, BLOCK, str(FIRST), world)


def save_another_model(rank: int, world: int, folder: str) -> None:
    """Step 15, with none of the tensors of `live_tensors`."""
    import torch.distributed.checkpoint as dcp

    from trainer.checkpoint import state

    dcp.save({"model": {"other": torch.ones(3)}}, storage_writer=dcp.FileSystemWriter(folder))
    if rank == 0:
        description = state.description(config(), FIRST, 15, 0.1, "data", world)
        (Path(folder) / "state.json").write_text(json.dumps(description))
        write_marker(Path(folder), BLOCK, str(FIRST), world)
