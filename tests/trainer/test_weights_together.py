"""What is wrong with the folder of one node all ranks raise: none waits in a collective for one that has left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.gloo import run_ranks
from tests.trainer.model_folders import folder_of, trained_from
from tests.trainer.test_model import CPU

REFUSED, BROKEN = "ConfigError", "OSError"


def begun(rank: int, world_size: int, folders: str, step: int) -> tuple[str, str]:
    """Kind and text of what `begin` raised on this rank, whose folder is its own. Collective."""
    from torch.distributed.device_mesh import init_device_mesh

    from holdfast.config import ConfigError
    from holdfast.run_directory import RunDirectory
    from trainer import weights_load
    from trainer.model import build

    folder = Path(folders) / str(rank)
    config = trained_from(folder)
    model = build(config, CPU, init_device_mesh("cpu", (world_size,)))
    if (folder / "vanishes").exists():
        shutil.rmtree(folder)
    log = SimpleNamespace(lasted=lambda *_, **__: None)
    run = RunDirectory(Path(folders) / "run")
    run.path.mkdir(exist_ok=True)
    survivors: Any = SimpleNamespace(
        config=config, identity=SimpleNamespace(rank=rank), storage=Path("/fsx"), log=log, run=run
    )
    try:
        weights_load.begin(step, model, survivors)
    except (ConfigError, OSError) as error:
        return type(error).__name__, str(error)
    return "", ""


def other_values(folder: Path) -> None:
    """The same headers and sizes, and a value that is no number, in rows that only the second rank reads."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][-1] = torch.nan
    save_file(tensors, file, {"format": "pt"})


def another_epsilon(folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"rms_norm_eps": 0.5}))


@pytest.mark.parametrize(
    ("change", "step", "kind", "text"),
    [
        (lambda folder: None, 0, "", ""),
        (other_values, 0, REFUSED, "no finite numbers (1): model.embed_tokens.weight"),
        (another_epsilon, 0, REFUSED, "ranks see different contents of config.json (rank 0: "),
        (another_epsilon, 7, REFUSED, "ranks see different contents of config.json (rank 0: "),
        (lambda folder: (folder / "vanishes").touch(), 0, BROKEN, "rank 1: "),
    ],
    ids=["equal", "values", "settings", "settings of a run with a checkpoint", "vanished"],
)
def test_all_ranks_raise_what_one_of_them_finds(
    change: Callable[[Path], None], step: int, kind: str, text: str, tmp_path: Path
) -> None:
    folder_of("llama", tmp_path / "0")
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    change(tmp_path / "1")
    for found, why in run_ranks(begun, 2, str(tmp_path), step, timeout_s=100):
        assert (found, text in why) == (kind, True), why
