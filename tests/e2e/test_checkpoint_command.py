"""`holdfast checkpoint` on what a real run has left: the writer's folders, not ones that a test has made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from holdfast.config import names
from tests.e2e.conftest import Clean
from tests.e2e.harness import ROOT

pytestmark = pytest.mark.timeout(300)


def checkpoint(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "checkpoint", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_ls_and_verify_know_the_steps_of_a_finished_run(clean: Clean) -> None:
    done = checkpoint("ls", str(clean.out), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    committed = [save for save in json.loads(done.stdout)["saves"] if save["state"] == "committed"]
    facts = [(save["step"], save["world_size"], save["attempt"], save["latest"]) for save in committed]
    assert facts == [(15, 2, "g1-c0-r0", False), (20, 2, "g1-c0-r0", True)]
    done = checkpoint("verify", str(clean.out))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()[:-1]] == ["step 15: whole", "step 20: whole"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_exported_weights_are_those_of_the_last_step(clean: Clean, tmp_path: Path) -> None:
    done = checkpoint("export", str(clean.out), "--to", str(tmp_path / "hf"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"step 20 is exported to {tmp_path / 'hf'}: ")
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    trained = {f"model.{name}": torch.full_like(tensor, float("nan")) for name, tensor in exported.items()}
    folder = clean.files.run_dir / names.CHECKPOINTS / names.step_folder(20)
    dcp.load(trained, checkpoint_id=folder, no_dist=True)
    assert [name for name, tensor in exported.items() if not tensor.equal(trained[f"model.{name}"])] == []
