"""Ranks on pretended nodes, each with a folder of its own, that save to the local tier and restore from it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from holdfast import lineage
from holdfast.config import RunConfig, load_profile
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from trainer.checkpoint.local import LocalPipeline, LocalTier, Save, Seat, layout_hash
from trainer.checkpoint.stage import Stage
from trainer.checkpoint.writer import LET_GO_S, Ticket, Writer, WriterFailed

TOKEN = "secret"
BOUND_S = 60.0


class ThreadWriter(Writer):
    """Does requests in a thread of the same process: no start-up time. Everything else is as with the real one."""

    def __init__(self) -> None:
        self._number = 0
        self._results: dict[int, Any] = {}
        self._before: threading.Thread | None = None

    def prepare(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.submit(function, *arguments)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ticket:
        self._number += 1
        number, before = self._number, self._before

        def work() -> None:
            if before is not None:
                before.join()
            try:
                self._results[number] = function(*arguments)
            except Exception as error:  # noqa: BLE001  as the real one does
                self._results[number] = error

        self._before = threading.Thread(target=work, daemon=True)
        self._before.start()
        return Ticket(number, 0, time.monotonic())

    def result(self, ticket: Ticket, limit_s: float) -> Any | None:
        found = self._results.get(ticket.number)
        if isinstance(found, Exception):
            raise WriterFailed(str(found), type(found).__name__)
        return found

    @property
    def busy(self) -> bool:
        return False

    def abort(self, limit_s: float = LET_GO_S) -> None:
        pass


def config(world_size: int, *overrides: str) -> RunConfig:
    """cpu-test with a local save every two steps."""
    return load_profile(
        "cpu-test",
        [
            f"cluster.nodes={world_size}",
            "training.global_batch_size=48",
            "training.micro_batch_size=1",
            "checkpoint.interval_steps=1000",
            "training.steps=10000",
            "checkpoint.local.interval_steps=2",
            *overrides,
        ],
    )


class Rank:
    """One rank of an attempt on its node. Its state is a pure function of (rank, step)."""

    def __init__(
        self, root: Path, rank: int, world_size: int, cycle: int, node: int, writer: Writer, *overrides: str
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.folder = root / f"node-{node}"
        self.run = RunDirectory(root / "run")
        self.attempt = f"g1-c{cycle}-r0"
        self.config = config(world_size, *overrides)
        if rank == 0:
            if self.run.owner() is None:
                self.run.take(nodes=world_size, job="test", jobset_attempt=0, pod="pod", lease_s=0.1)
            lineage.begin(self.run, self.attempt, 1)
        dist.barrier()
        self.live = {"model.w": torch.zeros(3001 + 13 * rank), "model.b": torch.zeros(5, dtype=torch.float64)}
        self.stage = Stage()
        self.stage.bind(self.live)
        self.hash = layout_hash({"sizes": list(self.stage.layout.sizes), "names": self.stage.layout.names})
        self.log = EventLog(self.run.events, "rank", rank=rank, cycle=cycle)
        seat = Seat(self.attempt, rank, world_size, "127.0.0.1", TOKEN)
        self.writer = writer
        store = dist.PrefixStore(self.attempt, _get_default_store())
        self.pipeline = LocalPipeline(
            self.config, seat, self.folder, self.hash, self.stage, self.writer, store, self.log
        )
        self.tier = LocalTier(self.folder, self.run, rank, world_size, read_threads=2)

    def set_state(self, step: int) -> None:
        """What training has made of the state after `step`."""
        made = torch.Generator().manual_seed(1000 * step + self.rank)
        for tensor in self.live.values():
            tensor.copy_(torch.randn(tensor.shape, generator=made, dtype=tensor.dtype))

    def state_is_of(self, step: int) -> bool:
        """Bit equality with the state after `step`."""
        found = {name: tensor.clone() for name, tensor in self.live.items()}
        self.set_state(step)
        return all(torch.equal(self.live[name], found[name]) for name in found)

    def start(self, step: int, restored: Save | None = None) -> None:
        """Training goes on from `step`."""
        if self.rank == 0:
            lineage.started(self.run, self.attempt, step)
        self.tier.leave_newer_behind(step)
        self.pipeline.start(step, restored)

    def step(self, step: int) -> None:
        """One step: everybody's gradients, then the update, then whatever the tier does."""
        dist.all_reduce(torch.ones(1))
        self.set_state(step)
        self.pipeline.after_step(step)

    def steps_until(self, first: int, commits: int, limit_s: float = BOUND_S) -> int:
        """Steps from `first` on until so many local saves of the attempt are complete. Returns the last step."""
        deadline = time.monotonic() + limit_s
        for step in range(first, 10000):
            self.step(step)
            time.sleep(0.02)
            done = torch.tensor([int(self.rank == 0 and len(self.events("local_commit")) >= commits)])
            dist.all_reduce(done)
            if done.item():
                return step
            assert time.monotonic() < deadline, f"only {self.events('local_commit')} after {limit_s} s"
        raise AssertionError("too many steps")

    def restore(self) -> Save | None:
        """Find and load, as an attempt does at its start; the state is then in the live tensors."""
        while candidate := self.tier.find(self.hash):
            if self.tier.load(candidate, self.stage.segments()) is not None:
                self.stage.put_back()
                return candidate.save
        return None

    def events(self, name: str) -> list[dict[str, Any]]:
        """This rank's events of one name."""
        lines = self.log.path.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["name"] == name]
