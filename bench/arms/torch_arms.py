"""What torch offers: `torch.save` of each rank's shards, and `torch.distributed.checkpoint`, synchronous and not."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from bench.arms.arm import Arm
from bench.arms.workload import Workload, local
from holdfast.run_directory import sync_folder


def save_synced(content: Any, path: str) -> None:
    """torch.save, and fsync of the file."""
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def shards(work: Workload) -> dict[str, torch.Tensor]:
    """This rank's part of every tensor."""
    return {name: local(tensor) for name, tensor in work.live().items()}


def same_in_file(path: Path, probe: dict[str, torch.Tensor]) -> bool:
    """Whether a file of `shards` holds the probed values."""
    read = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    return all(torch.equal(read[name], local(tensor).cpu()) for name, tensor in probe.items())


class TorchSave(Arm):
    """Each rank writes its shards to one file while training waits."""

    def save(self, index: int) -> None:
        folder = self.folder(index)
        folder.mkdir(exist_ok=True)
        save_synced(shards(self.work), str(self._path(index)))
        sync_folder(folder)

    def _path(self, index: int) -> Path:
        return self.folder(index) / f"rank-{self.work.rank}.pt"

    def as_saved(self, index: int, probe: dict[str, torch.Tensor]) -> bool:
        return same_in_file(self._path(index), probe)


class Dcp(Arm):
    """`dcp.save` while training waits."""

    def save(self, index: int) -> None:
        dcp.save(self.state(), storage_writer=self.writer(index), planner=_planner())

    def state(self) -> dict[str, Any]:
        """Model and optimizer as DCP's tutorial collects them."""
        model, optimizer = get_state_dict(self.work.model, self.work.optimizer)
        return {"model": model, "optimizer": optimizer}

    def writer(self, index: int) -> dcp.FileSystemWriter:
        """Writes with as many threads as every other arm, fsynced (its default)."""
        return dcp.FileSystemWriter(self.folder(index), thread_count=self.work.spec.threads, sync_files=True)


class DcpAsync(Dcp):
    """`dcp.async_save` with torch's own stager: pinned buffers that are allocated once, a copy by a background thread
    on a stream of its own, for which only the next optimizer step waits."""

    kind = AsyncCheckpointerType.THREAD

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        cuda, shared = work.spec.cuda, self.kind == AsyncCheckpointerType.PROCESS
        self._stager = DefaultStager(StagingOptions(cuda, shared, True, cuda))
        # torch 2.11 empties the stager after each save, its buffers and what makes a second save possible at all
        # (KeyError: <class 'type'>, pytorch issue 183413). Kept, it does what its authors meant, as with later torch.
        setattr(self._stager._state_dict_stager, "close", lambda: None)  # noqa: B010 (mypy refuses the assignment)
        self._group = dist.new_group(backend="gloo")
        self._staged: Future[None] | None = None
        self._written: Future[Any] | None = None

    def save(self, index: int) -> None:
        if self._written is not None:
            self._written.result()
        # The stager's stream does not wait for ours: without this it could copy what the optimizer still changes.
        self.work.finish_gpu()
        response: Any = dcp.async_save(
            self.state(),
            storage_writer=self.writer(index),
            planner=_planner(),
            process_group=self._group,
            async_checkpointer_type=self.kind,
            async_stager=self._stager,
        )
        self._staged, self._written = response.staging_completion, response.upload_completion

    def before_update(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def durable(self) -> bool:
        if self._written is None or not self._written.done():
            return False
        self._written.result()  # raises what the save raised
        return True


class DcpAsyncProcess(DcpAsync):
    """The same with shared memory and a process of torch's own that writes."""

    kind = AsyncCheckpointerType.PROCESS


def _planner() -> DefaultSavePlanner:
    return DefaultSavePlanner(enable_plan_caching=True)


ARMS: dict[str, type[Arm]] = {
    "torch_save": TorchSave,
    "dcp_sync": Dcp,
    "dcp_async_thread": DcpAsync,
    "dcp_async_process": DcpAsyncProcess,
}
