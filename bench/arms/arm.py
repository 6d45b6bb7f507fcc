"""What the loop asks of an arm."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from bench.arms.workload import Workload, whole


class Arm:
    """One way of saving, on one rank. The methods that do nothing here are those that some ways do not need."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.target = Path(work.spec.target) / work.spec.method
        if work.rank == 0:
            shutil.rmtree(self.target, ignore_errors=True)
            self.target.mkdir(parents=True)
        work.barrier()

    def warm_up(self) -> None:
        """What its authors offer to do at start-up. Not timed."""

    def save(self, index: int) -> None:
        """Begin a save of the tensors as they are now. Called after the optimizer's step was launched."""
        raise NotImplementedError

    def between(self) -> None:
        """The forward pass has been launched."""

    def before_update(self) -> None:
        """Gradients are there; return as soon as parameters may change."""

    def after_step(self) -> None:
        """What its authors tell the loop to call in each step."""

    def durable(self) -> bool:
        """Whether this rank's part of the last save is on the file system, fsynced."""
        return True

    def done(self) -> bool:
        """Whether all work of the last save is over, the deletion of older ones included where it is the arm's own."""
        return self.durable()

    def folder(self, index: int) -> Path:
        """Where save `index` lies."""
        return self.target / f"save-{index:04d}"

    def forget(self, index: int) -> None:
        """Delete a save. Called by rank 0 between measurements."""
        shutil.rmtree(self.folder(index), ignore_errors=True)

    def as_saved(self, index: int, probe: dict[str, torch.Tensor]) -> bool:
        """Whether the save holds the probed values. Called on all ranks."""
        expected = {name: whole(tensor) for name, tensor in probe.items()}
        reader = dcp.FileSystemReader(self.folder(index))
        entries = reader.read_metadata().state_dict_metadata
        read = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name in expected
            if isinstance(entry := entries[name], TensorStorageMetadata)
        }
        dcp.load(read, storage_reader=reader, no_dist=True)
        return all(torch.equal(read[name], value) for name, value in expected.items())
