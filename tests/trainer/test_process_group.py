"""The process group of an attempt comes about whatever became of the one before."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast.config import load_profile
from tests.trainer.gloo import run_ranks
from trainer.runtime import Attempt, Identity, process_group

_kept: list[Any] = []
"""In a rank: what must live until its process ends."""


class _Silent:
    """An event log that keeps nothing."""

    def lasted(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def _second_group(rank: int, world: int, port: int) -> list[float]:
    """Rank 1 fails before the first group; rank 0 waits for it until the timeout. Then both make the next one."""
    import torch
    import torch.distributed as dist

    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
    config = load_profile("cpu-test", ["recovery.process_group_timeout_s=5"])
    identity = Identity(rank, world, 0, 1, 0, "pod", "node", f"127.0.0.1:{port}")
    log: Any = _Silent()
    if rank == 0:
        with pytest.raises(RuntimeError), process_group(config, identity, Attempt(1, 0, 0), log):
            pass
    store.set(f"ready-{rank}", "")
    store.wait([f"ready-{other}" for other in range(world)])
    stays = ExitStack()  # the caller destroys the group
    stays.enter_context(process_group(config, identity, Attempt(1, 0, 1), log))
    total = torch.full((2,), float(rank + 1))
    dist.all_reduce(total)
    _kept.extend([store, stays])
    answer: list[float] = total.tolist()
    dist.barrier()
    return answer


@pytest.mark.timeout(200)
def test_a_group_that_never_came_about_does_not_keep_the_ranks_from_the_next_one() -> None:
    """torch counts the groups that it has named; a rank that waited in vain would name the next one otherwise than its
    peer, and both would wait again, in each attempt to come."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert run_ranks(_second_group, 2, port, timeout_s=150) == [[3.0, 3.0]] * 2
