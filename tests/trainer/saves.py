"""A tiny sharded model with real checkpoints, for tests that run it on several ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from holdfast.config import RunConfig, load_profile
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory, RunIsOwned
from trainer.restart.heartbeat import Pulse
from trainer.runtime import Attempt, Identity


def config(*overrides: str, world_size: int = 2) -> RunConfig:
    """cpu-test at another size, with short limits."""
    return load_profile(
        "cpu-test",
        [f"cluster.nodes={world_size}", "training.global_batch_size=48", "training.micro_batch_size=1", *overrides],
    )


class Session:
    """What one rank of an attempt has: a model, an optimizer and Checkpoints, in a run directory that is owned."""

    def __init__(
        self,
        run_dir: str,
        settings: RunConfig,
        rank: int,
        world_size: int,
        cycle: int = 0,
        device: str = "cpu",
        hidden: int = 64,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        from trainer.checkpoint.checkpoints import Checkpoints
        from trainer.checkpoint.near import Hands
        from trainer.checkpoint.stage import Stage
        from trainer.checkpoint.writer import Writer
        from trainer.train import Survivors

        self.run = RunDirectory(Path(run_dir))
        generation = self._generation(rank, world_size)
        self.attempt = Attempt(generation, cycle, 0)
        identity = Identity(rank, world_size, 0, generation, cycle, "pod", "node", "")
        self.log = EventLog(
            self.run.events, "rank", rank=rank, world_size=world_size, generation=generation, cycle=cycle
        )
        self.writer = Writer(rank)
        self.local = None if settings.checkpoint.local.interval_steps is None else Hands(Writer(rank))
        survivors = Survivors(
            settings, identity, self.run, Path(run_dir), self.log, Pulse(None), self.writer, Stage(), self.local
        )
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(31, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 5))
        self.model = model.to(device)
        self.device = device
        fully_shard(self.model, mesh=init_device_mesh(device, (world_size,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=device == "cuda")
        self.checkpoints = Checkpoints(survivors, self.attempt, self.model, self.optimizer, "data")
        self.rank = rank

    def _generation(self, rank: int, world_size: int) -> int:
        """The first rank takes the run if nobody has; all use the generation that owns it."""
        import torch.distributed as dist

        if rank == 0 and self.run.owner() is None:
            self.run.take(nodes=world_size, job="test", jobset_attempt=0, pod="pod", lease_s=0.1)
        dist.barrier()
        owner = self.run.owner()
        if owner is None:
            raise RunIsOwned("no owner")
        return owner.generation

    def step(self, step: int) -> None:
        """One update that depends on the step only, then whatever checkpointing does after a step."""
        inputs = torch.randn(8, 31, generator=torch.Generator().manual_seed(step)).to(self.device)
        loss = self.model(inputs).square().mean()
        self.checkpoints.between()
        loss.backward()
        self.checkpoints.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.checkpoints.after_step(step)

    def steps(self, first: int, last: int, pause_s: float = 0.0) -> None:
        """Steps first..last inclusive."""
        for step in range(first, last + 1):
            self.step(step)
            time.sleep(pause_s)

    def settle(self) -> None:
        """Wait for the save in flight, as the loop does before the next one."""
        self.checkpoints._saving.wait()

    def await_writer(self, limit_s: float = 90) -> None:
        """Until the writer process has imported torch and answers, which takes seconds, more on a busy machine."""
        from trainer.checkpoint import commit

        ticket = self.writer.submit(commit.discard, "/there/is/nothing")
        while self.writer.result(ticket, limit_s) is None:
            time.sleep(0.02)

    def whole(self) -> dict[str, torch.Tensor]:
        """All tensors of model and optimizer, unsharded, by dotted name. Collective."""
        from torch.distributed.tensor import DTensor

        from trainer.checkpoint.state import live_tensors

        live = live_tensors(self.model, self.optimizer)
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
            for name, tensor in live.items()
        }

    def committed(self) -> list[int]:
        """Committed steps on disk."""
        from holdfast.checkpoint_folder import look

        return list(look(self.run.checkpoints).committed)

    def events(self, name: str) -> list[dict[str, Any]]:
        """This rank's events of one name."""
        import json

        lines = self.log.path.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["name"] == name]

    def close(self) -> None:
        """End the writers."""
        self.writer.close()
        if self.local is not None:
            self.local.writer.close()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit equality of every tensor."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
