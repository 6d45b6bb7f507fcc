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
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult


@dataclass(frozen=True)
class ShardPlan:
    """What this rank writes. metadata is the checkpoint's global description, on rank 0 only."""

    items: list[WriteItem]
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


def make_plan(live: dict[str, torch.Tensor], threads: int) -> ShardPlan:
    """Plan the saves of `live`. Collective: call on all ranks."""
    writer = _PlanningWriter(Path("unused"), thread_count=threads)
    _, metadata, _ = save_state_dict_async_plan(nested(live), writer, planner=DefaultSavePlanner())
    return ShardPlan(list(writer.plan.items), writer.plan.storage_data, metadata, writer.transforms)


def write_metadata(metadata: Metadata, folder: Path, results: list[list[WriteResult]]) -> None:
    """Write `.metadata` into `folder` from the write results of all ranks."""
    writer = _PlanningWriter(folder)
    writer.set_up_storage_writer(is_coordinator=True)
    writer.finish(dataclasses.replace(metadata), results)


def results_to_json(results: list[WriteResult]) -> list[list[Any]]:
    """Where each tensor part lies, as plain data: torch hands such results around as pickles, and what lies on shared
    storage is not unpickled before a checksum vouches for it."""
    plain = []
    for result in results:
        index, where = result.index, result.storage_data
        offset = None if index.offset is None else list(index.offset)
        plain.append(
            [index.fqn, offset, index.index, result.size_in_bytes, where.relative_path, where.offset, where.length]
        )
    return plain


def results_from_json(plain: list[list[Any]]) -> list[WriteResult]:
    """The inverse of `results_to_json`."""
    return [
        WriteResult(
            index=MetadataIndex(fqn, None if place is None else torch.Size(place), index),
            size_in_bytes=size,
            storage_data=_StorageInfo(path, offset, length),
        )
        for fqn, place, index, size, path, offset, length in plain
    ]
