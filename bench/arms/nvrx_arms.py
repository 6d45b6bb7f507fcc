"""What NVRx offers: `TorchAsyncCheckpoint`, and its asynchronous writer of DCP checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import (
    FileSystemWriterAsync,
    get_write_results_queue,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    init_checkpoint_metadata_cache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from bench.arms.torch_arms import Dcp, TorchSave, same_in_file, save_synced, shards
from bench.arms.workload import Workload
from holdfast.run_directory import sync_folder


class NvrxTorch(TorchSave):
    """`TorchAsyncCheckpoint`: waits for a copy to pinned memory, then hands the tensors to a persistent process."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self._saver = TorchAsyncCheckpoint()
        TorchAsyncCheckpoint.async_fn = save_synced  # its own is torch.save, which leaves fsync out

    def warm_up(self) -> None:
        AsyncCallsQueue.warmup_persistent_caller(self.work.rank)

    def save(self, index: int) -> None:
        self._saver.finalize_async_save(blocking=True, no_dist=True)
        self.folder(index).mkdir(exist_ok=True)
        sync_folder(self.target)
        self._saver.async_save(shards(self.work), str(self._path(index)))

    def after_step(self) -> None:
        self._saver.finalize_async_save(blocking=False, no_dist=True)

    def durable(self) -> bool:
        return bool(self._saver._get_async_calls_queue().get_num_unfinalized_calls() == 0)

    def as_saved(self, index: int, probe: dict[str, torch.Tensor]) -> bool:
        return same_in_file(Path(self._path(index)), probe)


class NvrxDcp(Dcp):
    """The DCP writer: the persistent process copies from the GPU into pinned memory while training waits, then writes.

    With everything that makes it fast: cached plan and metadata, cached handles of the GPU tensors, process and result
    queue started ahead.
    """

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self._queue = AsyncCallsQueue(persistent=True)

    def warm_up(self) -> None:
        init_checkpoint_metadata_cache()
        get_write_results_queue()
        AsyncCallsQueue.warmup_persistent_caller(self.work.rank)

    def save(self, index: int) -> None:
        self._queue.maybe_finalize_async_calls(blocking=True)
        self.folder(index).mkdir(exist_ok=True)
        self.work.finish_gpu()  # another process reads the tensors: no stream orders it after the optimizer's step
        writer = FileSystemWriterAsync(
            self.folder(index), thread_count=self.work.spec.threads, use_cached_data_structure=True
        )
        plan = save_state_dict_async_plan(self.state(), writer, planner=DefaultSavePlanner(), enable_cache=True)
        function, preload, arguments = writer.get_save_function_and_args()

        def finalize() -> None:
            save_state_dict_async_finalize(*plan)

        request = AsyncRequest(function, tuple(arguments), [finalize], async_fn_kwargs={}, preload_fn=preload)
        self._queue.schedule_async_request(request)

    def after_step(self) -> None:
        self._queue.maybe_finalize_async_calls(blocking=False)

    def durable(self) -> bool:
        return bool(self._queue.get_num_unfinalized_calls() == 0)


ARMS: dict[str, Any] = {"nvrx_torch": NvrxTorch, "nvrx_dcp": NvrxDcp}
