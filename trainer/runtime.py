"""Who this process is, and how it finds its peers: identity from the environment, device, store, process group."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.config import RunConfig, names
from holdfast.goodput.events import EventLog

if TYPE_CHECKING:
    import torch

STORE_TIMEOUT = timedelta(seconds=60)
"""Longest wait for the control pod's store to answer. NVRx's default of 300 s would be paid on every lost key."""


@dataclass(frozen=True)
class Identity:
    """This process among its peers. generation, token and cycle are the same on all ranks of an attempt."""

    rank: int
    world_size: int
    local_rank: int
    generation: int
    cycle: int
    pod: str
    node: str
    store: str
    """host:port of the control pod's store; empty under torchrun, where rank 0's node keeps the store."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Identity:
        """Read what launcher and supervisor have set."""
        under_nvrx = "FT_RANK_MONITOR_IPC_SOCKET" in environment
        return cls(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            generation=int(environment.get(names.ENV_GENERATION, "0")),
            cycle=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            pod=environment.get(names.ENV_POD, ""),
            node=environment.get(names.ENV_NODE, ""),
            store=environment.get(names.ENV_STORE, "") if under_nvrx else "",
        )


@dataclass(frozen=True)
class Attempt:
    """One call of train(). Printed as g1-c0-r0."""

    generation: int
    cycle: int
    restart: int

    def __str__(self) -> str:
        return f"g{self.generation}-c{self.cycle}-r{self.restart}"


def raise_open_files_limit() -> None:
    """Let this process and its children open as many files as the machine allows: sockets to every peer, shared
    segments, files of a restore. The usual soft limit is 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def device_of(config: RunConfig, local_rank: int) -> torch.device:
    """The device that this rank computes on."""
    import torch

    if config.device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(config: RunConfig, identity: Identity, attempt: Attempt, log: EventLog) -> Iterator[None]:
    """The default process group of one attempt, over a store whose keys no other attempt uses.

    Rank and world size are read again from the environment: an in-process restart may have changed them. The group is
    not destroyed after an exception: destroying waits for peers, and the restart layers abort it themselves.
    """
    import torch.distributed as dist
    import torch.distributed.nn.functional  # noqa: F401  imported later, it would keep the old group alive after an abort

    start = time.monotonic()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=config.recovery.process_group_timeout_s)
    backend = "gloo" if config.device == "cpu" else "cpu:gloo,cuda:nccl"
    if not dist.is_initialized():
        # torch names groups by a counter, which only destroying a group resets. One that never came about, since a peer
        # failed before it, leaves it ahead: this rank and that peer would wait for one another under different names.
        dist.distributed_c10d._world.group_count = 0
    if identity.store:
        host, _, port = identity.store.rpartition(":")
        # multi_tenant stays False: True would make every rank of a process share one connection between attempts.
        base = dist.TCPStore(host, int(port), is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
        store = dist.PrefixStore(f"holdfast/{attempt}", base)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    log.lasted("process_group", start)
    yield
    dist.destroy_process_group()
