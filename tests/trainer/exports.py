"""Committed steps of tiny language models, and what an export has made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint_folder import BLOCK_BYTES, STATE
from holdfast.config import RunConfig, names
from tests.trainer.committed import write_marker
from tests.trainer.test_model import tokens_of
from trainer.checkpoint.export import Target, export
from trainer.checkpoint.plan import nested
from trainer.checkpoint.state import description, live_tensors
from trainer.model import build
from trainer.optimizer import build_optimizer
from trainer.runtime import Attempt

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
ATTEMPT = Attempt(1, 0, 0)


def commit(folder: Path, config: RunConfig) -> Path:
    """Make a committed step of a folder that `dcp.save` has written."""
    (folder / STATE).write_text(json.dumps(description(config, ATTEMPT, 30, 1e-3, "data", 2)))
    write_marker(folder, BLOCK_BYTES, world_size=config.world_size)
    return folder


def step_folder(storage: Path) -> Path:
    folder = storage / "runs" / "test" / names.CHECKPOINTS / names.step_folder(30)
    folder.mkdir(parents=True)
    return folder


def trained(config: RunConfig) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model after one real update, so that its weights are not those of any initialization."""
    model = build(config, CPU)
    optimizer = build_optimizer(model, config)
    model(input_ids=tokens_of(3)).logits.square().mean().backward()
    optimizer.step()
    return model.eval(), optimizer


def saved(storage: Path, config: RunConfig) -> tuple[torch.nn.Module, Path]:
    model, optimizer = trained(config)
    folder = step_folder(storage)
    dcp.save(nested(live_tensors(model, optimizer)), checkpoint_id=folder, no_dist=True)
    return model, commit(folder, config)


def exported(folder: Path, to: Path, dtype: torch.dtype = torch.float32, shard_bytes: int = 10**9) -> dict[str, Any]:
    return export(folder, Target(to, dtype, shard_bytes), lambda record: None)


def logits_of(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    loading: Any = AutoModelForCausalLM
    loaded, report = loading.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        logits: torch.Tensor = loaded(input_ids=tokens_of(1)).logits
    return logits


def stored_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    stored = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            stored += list(file.keys())
    return stored
