"""torch's own tools read a committed step, in processes that know nothing of Holdfast, and get what was trained."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config
from trainer.checkpoint.plan import nested

STEP = 4
ONLY_TORCH = """
strangers = {name.split(".")[0] for name in sys.modules} & {"holdfast", "trainer", "nvidia_resiliency_ext", "tests"}
assert not strangers, strangers
"""
LOAD = """
import sys, torch
import torch.distributed.checkpoint as dcp
folder, shapes, result = sys.argv[1:]
state = torch.load(shapes, weights_only=True)
dcp.load(state, checkpoint_id=folder)
torch.save(state, result)
"""
CONVERT = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
folder, _, result = sys.argv[1:]
dcp_to_torch_save(folder, result)
"""


def save(rank: int, world_size: int, run_dir: str) -> dict[str, torch.Tensor]:
    """Two saves by the product itself; what the tensors were at the last one."""
    session = Session(run_dir, config("checkpoint.interval_steps=2", world_size=world_size), rank, world_size)
    session.checkpoints.restore()
    session.steps(1, STEP)
    session.settle()
    session.close()
    return session.whole()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A step folder that two ranks have committed, and the tensors that must be in it."""
    run = tmp_path_factory.mktemp("run")
    tensors = run_ranks(save, 2, str(run))[0]
    folder = run / names.CHECKPOINTS / names.step_folder(STEP)
    assert (folder / names.COMMITTED).exists()
    return folder, tensors


def read_by(script: str, folder: Path, shapes: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """What a process of torch alone makes of the folder."""
    torch.save(shapes, place / "shapes.pt")
    arguments = [str(folder), str(place / "shapes.pt"), str(place / "result.pt")]
    command = [sys.executable, "-c", script + ONLY_TORCH, *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = torch.load(place / "result.pt", weights_only=True)
    return result


def leaves(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A nested state by dotted name."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


@pytest.mark.parametrize("script", [LOAD, CONVERT], ids=["torch.distributed.checkpoint.load", "dcp_to_torch_save"])
def test_a_stock_tool_gets_every_tensor_bit_for_bit(
    tmp_path: Path, trained: tuple[Path, dict[str, torch.Tensor]], script: str
) -> None:
    folder, tensors = trained
    empty = nested({name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()})
    read = leaves(read_by(script, folder, empty, tmp_path))
    assert read.keys() == tensors.keys()
    assert [name for name, tensor in tensors.items() if not torch.equal(read[name], tensor)] == []
    assert any(name.startswith("optimizer.state.") and name.endswith(".exp_avg") for name in read)
