"""Resharding: what N ranks saved, M ranks restore, bit for bit, weights and optimizer, for all N and M in 1..8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config import load_profile
from holdfast.config.names import step_folder
from tests.trainer.committed import write_marker
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import same

BLOCK = 2048


class _Uneven(torch.nn.Module):
    """Dimensions that few numbers of ranks divide, and parameters with fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(17, 31)
        self.norm = torch.nn.LayerNorm(7)
        self.last = torch.nn.Linear(31, 3, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(1))


class _Peers:
    """Process groups of changing size, over the store of one launch."""

    def __init__(self, rank: int) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        self.rank = rank
        self.all = dist.get_world_size()
        self._store = _get_default_store()
        self._count = 0
        dist.destroy_process_group()

    @contextmanager
    def group(self, size: int) -> Iterator[bool]:
        """The first `size` ranks form the default group and get True; the others wait at the end."""
        import torch.distributed as dist

        self._count += 1
        if self.rank < size:
            store = dist.PrefixStore(f"group-{self._count}", self._store)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=size)
        yield self.rank < size
        if self.rank < size:
            dist.destroy_process_group()
        if self._store.add(f"over-{self._count}", 1) == self.all:
            self._store.set(f"all-over-{self._count}", "")
        self._store.wait([f"all-over-{self._count}"])

    def close(self) -> None:
        """Leave a default group of all, as the launcher expects it."""
        import torch.distributed as dist

        store = dist.PrefixStore("last", self._store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.all)


def _live(size: int) -> dict[str, torch.Tensor]:
    """State of a sharded model and its optimizer, of values that no save holds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from trainer.checkpoint import state

    model = _Uneven()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters())
    state.prepare_optimizer(model, optimizer)
    return state.live_tensors(model, optimizer)


def _fill(live: dict[str, torch.Tensor], seed: int | None) -> None:
    """Values of this rank, NaN without a seed; what every rank holds whole is the same everywhere."""
    from torch.distributed.tensor import DTensor

    from trainer.checkpoint.stage import local_part

    for number, tensor in enumerate(live.values()):
        rank = tensor.device_mesh.get_rank() if isinstance(tensor, DTensor) else 0
        local = local_part(tensor)
        if seed is None:
            local.fill_(float("nan"))
        else:
            local.normal_(generator=torch.Generator().manual_seed(seed * 10_000 + number * 10 + rank))


def _whole(live: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import DTensor

    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in live.items()
    }


def _save(peers: _Peers, size: int, folder: Path) -> dict[str, torch.Tensor]:
    import torch.distributed.checkpoint as dcp

    from trainer.checkpoint.plan import nested

    live = _live(size)
    _fill(live, seed=size)
    dcp.save(nested(live), storage_writer=dcp.FileSystemWriter(folder, thread_count=2))
    if peers.rank == 0:
        (folder / "state.json").write_text("{}")
        write_marker(folder, BLOCK, world_size=size)
    return _whole(live)


def _reshard(rank: int, world: int, checkpoints: str, sizes: list[int]) -> list[str]:
    """Save on each number of ranks, restore each on each; what went wrong, as rank 0 sees it."""
    from trainer.checkpoint import restore

    peers, saved, wrong = _Peers(rank), dict[int, Any](), list[str]()
    how = load_profile("cpu-test", ["checkpoint.read_threads=2"]).checkpoint
    for size in sizes:
        with peers.group(size) as member:
            if member:
                saved[size] = _save(peers, size, Path(checkpoints) / step_folder(size))
    for size in sizes:
        with peers.group(size) as member:
            live = _live(size) if member else {}
            for origin in sizes if member else []:
                _fill(live, seed=None)
                opened, problems = restore.open_step(Path(checkpoints) / step_folder(origin), how)
                problems += restore.load(opened, live) if opened else []
                whole = _whole(live)
                if problems or (rank == 0 and not same(whole, saved[origin])):
                    wrong.append(f"{origin} -> {size}: {problems or 'other values'}")
    peers.close()
    return wrong


def _check(checkpoints: Path, sizes: list[int], limit_s: float = 110) -> None:
    results = run_ranks(_reshard, max(sizes), str(checkpoints), sizes, timeout_s=limit_s)
    assert results == [[] for _ in range(max(sizes))]
    assert len(list(checkpoints.glob("step-*/COMMITTED.json"))) == len(sizes)


def test_one_two_and_three_ranks_restore_what_any_of_them_saved(tmp_path: Path) -> None:
    """case-05."""
    _check(tmp_path, [1, 2, 3])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_to_eight_ranks_restore_what_any_of_them_saved(tmp_path: Path) -> None:
    """case-05: 64 pairs."""
    _check(tmp_path, list(range(1, 9)), limit_s=220)
