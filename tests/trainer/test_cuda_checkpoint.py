"""Saving and restoring on all GPUs of the machine, from the shared storage and from the nodes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config, same

pytestmark = pytest.mark.gpu
BACKEND = "cpu:gloo,cuda:nccl"
SETS = ("checkpoint.interval_steps=10", "checkpoint.local.interval_steps=3")


def _session(rank: int, world: int, folder: str, node: int, cycle: int) -> Session:
    torch.cuda.set_device(rank)
    os.environ[names.ENV_NODE_VOLUME] = f"{folder}/node-{node}"
    return Session(f"{folder}/run", config(*SETS, world_size=world), rank, world, cycle, device="cuda")


def _train(rank: int, world: int, folder: str, until: int) -> dict[int, dict[str, torch.Tensor]]:
    from tests.trainer.test_near import _settle_local

    session = _session(rank, world, folder, rank, 0)
    session.checkpoints.restore()
    session.await_writer()
    states = {}
    for step in range(1, until + 1):
        session.step(step)
        states[step] = {name: tensor.cpu() for name, tensor in session.whole().items()}
        session.settle()
        _settle_local(session)
    session.close()
    return states


def _resume(rank: int, world: int, folder: str, node: int) -> dict[str, Any]:
    session = _session(rank, world, folder, node if node >= 0 else rank, 1)
    step = session.checkpoints.restore()
    state = {name: tensor.cpu() for name, tensor in session.whole().items()}
    (restored,) = session.events("restore")
    session.close()
    return {"step": step, "state": state, "tier": restored["tier"]}


@pytest.mark.timeout(200)
def test_what_was_saved_on_gpus_is_restored_bit_for_bit_from_either_tier(tmp_path: Path) -> None:
    world = torch.cuda.device_count()
    states = run_ranks(_train, world, str(tmp_path), 16, timeout_s=90, backend=BACKEND)
    for result in run_ranks(_resume, world, str(tmp_path), -1, timeout_s=90, backend=BACKEND):
        assert (result["step"], result["tier"]) == (15, "local")
        assert same(result["state"], states[0][15])
    for rank in range(world):
        shutil.rmtree(tmp_path / f"node-{rank}")
    for result in run_ranks(_resume, world, str(tmp_path), -1, timeout_s=90, backend=BACKEND):
        assert (result["step"], result["tier"]) == (10, "shared")
        assert same(result["state"], states[0][10])
