"""Compare two committed checkpoints tensor by tensor: `python -m trainer.checkpoint.compare RUN_DIR RUN_DIR [--step
N]`.

Prints JSON {identical, tensors, parameters, step, different: [names]}; exit code 0 if identical, 1 if not, 2 if it
cannot be told: no such step, or a damaged one. World sizes may differ: whole tensors are compared, bit for bit,
optimizer state included.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.checkpoint_folder import look, read_marker
from holdfast.config import names
from holdfast.leases import Lease
from trainer.checkpoint.reader import Damaged, VerifyingReader


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a committed step folder, unsharded, by dotted name, verified. Raises Damaged."""
    marker = read_marker(folder)
    if marker is None:
        raise Damaged(f"{folder.name}: no marker that can be read")
    reader = VerifyingReader(folder, marker)
    entries = reader.read_metadata().state_dict_metadata
    whole = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    try:
        dcp.load(whole, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None  # the cause, which torch has wrapped
    return whole


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Compare two checkpoint folders."""
    a, b = read_whole(first), read_whole(second)
    different = sorted(set(a) ^ set(b))
    different += [name for name in sorted(set(a) & set(b)) if not _same(a[name], b[name])]
    return {
        "identical": not different,
        "tensors": len(a),
        "parameters": sum(tensor.numel() for name, tensor in a.items() if name.startswith("model.")),
        "different": different,
    }


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit equality; unlike torch.equal it holds for NaN and tells -0.0 from 0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return (
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        if a.dim()
        else _same(a[None], b[None])
    )


def newest(run_dir: Path, step: int | None) -> Path:
    """Folder of the newest committed step, or of `step`. Raises FileNotFoundError listing what there is."""
    committed = look(run_dir / names.CHECKPOINTS).committed
    if not committed or (step is not None and step not in committed):
        raise FileNotFoundError(
            f"{run_dir}: no committed step{'' if step is None else f' {step}'}; there are: {list(committed)}"
        )
    return run_dir / names.CHECKPOINTS / names.step_folder(step if step is not None else committed[-1])


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint.compare")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--step", type=int)
    arguments = parser.parse_args()
    try:
        folders = [newest(run_dir, arguments.step) for run_dir in (arguments.first, arguments.second)]
        with ExitStack() as leases:
            for folder in folders:
                leases.enter_context(Lease(folder.parent, int(names.step_of(folder.name) or 0), "compare"))
            compared = compare(*folders)
    except (FileNotFoundError, Damaged) as error:
        print(error, file=sys.stderr)
        return 2
    result = {**compared, "step": names.step_of(folders[0].name)}
    if folders[0].name != folders[1].name:
        result["identical"] = False
        result["different"] = [f"step: {folders[0].name} and {folders[1].name}"]
    print(json.dumps(result))
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
