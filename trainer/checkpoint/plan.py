"""Plan: which rank writes which part of which tensor, agreed once per attempt, used for every save."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import save_state_dict_async_plan
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem


@dataclass(frozen=True)
class ShardPlan:
    """What this rank writes. metadata is the checkpoint's global description, on rank 0 only.

    items and tensors run in parallel; the tensors are the stage's buffers, whose values change with every save.
    """

    items: list[WriteItem]
    tensors: list[torch.Tensor]
    storage_plan: Any
    metadata: Metadata | None
    transforms: Any


class _PlanningWriter(FileSystemWriterAsync):  # type: ignore[misc]
    """NVRx's writer for planning only. Its own preparation spawns a result-queue process that outlives a killed
    trainer; our results travel in the acknowledgement files instead.
    """

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # the folder of each save is made when it is written

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        self.plan = plan


def nested(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """{"model": {name: tensor}, "optimizer": {"state": {name: {key: tensor}}}}, the shape that stock DCP flattens to
    the same dotted names.
    """
    state: dict[str, Any] = {"model": {}, "optimizer": {"state": {}}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "model":
            state["model"][rest] = tensor
        else:
            parameter, _, key = rest.removeprefix("state.").rpartition(".")
            state["optimizer"]["state"].setdefault(parameter, {})[key] = tensor
    return state


def make_plan(live: dict[str, torch.Tensor], staged: dict[str, torch.Tensor], threads: int) -> ShardPlan:
    """Plan a save of `live`, whose values will lie in `staged`. Collective: call on all ranks."""
    writer = _PlanningWriter(Path("unused"), thread_count=threads)
    _, metadata, _ = save_state_dict_async_plan(nested(live), writer, planner=DefaultSavePlanner())
    items = list(writer.plan.items)
    return ShardPlan(
        items=items,
        tensors=[staged[item.index.fqn] for item in items],
        storage_plan=writer.plan.storage_data,
        metadata=metadata,
        transforms=writer.transforms,
    )


def with_results(metadata: Metadata, folder: Path, results: list[list[Any]]) -> None:
    """Write `.metadata` into `folder` from the write results of all ranks."""
    writer = _PlanningWriter(folder)
    writer.set_up_storage_writer(is_coordinator=True)
    writer.finish(dataclasses.replace(metadata), results)
