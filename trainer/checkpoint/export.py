"""Write the weights of a committed step in Hugging Face form: `python -m trainer.checkpoint.export STEP_FOLDER --to
FOLDER`.

Prints JSON lines: {total} bytes, {advance} bytes, {result}. Exit code 0, 1 if the checkpoint is damaged, 2 for bad
input or no room. Memory: one output file and one batch of tensors, whatever the size of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.checkpoint_folder import STATE, read_marker
from holdfast.config import ConfigError, Problem, names
from holdfast.config.schema import Model
from holdfast.leases import Lease
from holdfast.run_directory import sync_folder
from trainer.architecture import SPECIAL_TOKENS, on_meta
from trainer.checkpoint.reader import Damaged, VerifyingReader, committed_content
from trainer.checkpoint.tokenizer_copy import copy_tokenizer

BATCH_BYTES = 1 << 29
"""Weights (float32) read at once; a larger single tensor is read alone. Small tensors share the blocks that are read
and verified for them."""
WEIGHTS_INDEX = "model.safetensors.index.json"
ROOM_FOR_THE_REST = 1 << 26
"""Bytes for config, index and tokenizer."""
_OTHER_VERSION = "export with the version of transformers that the run was trained with"
Tell = Callable[[dict[str, Any]], object]
"""Gets what is printed as a JSON line."""


@dataclass(frozen=True)
class Target:
    """What to write. max_shard_bytes: of one weights file."""

    folder: Path
    dtype: torch.dtype
    max_shard_bytes: int


def export(folder: Path, target: Target, tell: Tell) -> dict[str, Any]:
    """Export a committed step folder; {parameters, bytes, shards, dtype, notes}.

    The target folder appears complete or not at all. Raises ConfigError for bad input, Damaged, OSError.
    """
    marker = read_marker(folder)
    if marker is None:
        raise _not_committed(folder)
    reader = VerifyingReader(folder, marker)
    saved = json.loads(committed_content(folder, marker, STATE))["config"]
    described = _model_of(saved, folder)
    model = on_meta(described)
    weights = wanted(model, reader.read_metadata().state_dict_metadata)
    shards = split_torch_state_dict_into_shards(
        {name: torch.empty(shape, dtype=target.dtype, device="meta") for name, shape in weights.items()},
        max_shard_size=target.max_shard_bytes,
    )
    total: int = shards.metadata["total_size"]
    with _fresh_folder(target.folder, total + ROOM_FOR_THE_REST) as into:
        tell({"total": total})
        for file, members in shards.filename_to_tensors.items():
            tensors = _read(reader, {name: weights[name] for name in members}, target.dtype, tell)
            _write(tensors, into / file)
            del tensors
        parameters = sum(shape.numel() for shape in weights.values())
        if shards.is_sharded:
            index = {
                "metadata": {"total_parameters": parameters, **shards.metadata},
                "weight_map": shards.tensor_to_filename,
            }
            (into / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2) + "\n")
        tokenizer, note = copy_tokenizer(saved, storage=folder.resolve().parents[3], into=into)
        _write_config(model, described.settings or {}, tokenizer, target.dtype, into)
    return {
        "parameters": parameters,
        "bytes": total,
        "shards": len(shards.filename_to_tensors),
        "dtype": str(target.dtype).removeprefix("torch."),
        "notes": [note],
    }


def _not_committed(folder: Path) -> ConfigError:
    fix = "name a folder that `holdfast checkpoint ls` calls committed"
    return ConfigError([Problem("folder", str(folder), "it is not a committed step", fix)], "export")


def _model_of(saved: dict[str, Any], folder: Path) -> Model:
    try:
        return Model.model_validate(saved["model"])
    except ValueError as error:
        fix = "export with the version of Holdfast that wrote it"
        raise ConfigError(
            [Problem("model", str(folder / STATE), " ".join(str(error).split()), fix)], "export"
        ) from None


def wanted(model: torch.nn.Module, there: dict[str, Any]) -> dict[str, torch.Size]:
    """Name -> shape of all that `from_pretrained` needs, tied weights once, under their first name.

    there: DCP's description of the checkpoint. Raises ConfigError if something is missing or has another shape.
    """
    twins = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    twins -= {name for name, _ in model.named_parameters()}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in twins}
    wrong = []
    for name, shape in shapes.items():
        entry = there.get(f"model.{name}")
        if not isinstance(entry, TensorStorageMetadata):
            wrong.append(Problem(name, None, "the checkpoint has no such weight", _OTHER_VERSION))
        elif entry.size != shape:
            wrong.append(Problem(name, tuple(entry.size), f"the model's has the shape {tuple(shape)}", _OTHER_VERSION))
    if wrong:
        raise ConfigError(wrong, "export")
    return shapes


def _read(
    reader: dcp.StorageReader, weights: dict[str, torch.Size], dtype: torch.dtype, tell: Tell
) -> dict[str, torch.Tensor]:
    """Whole weights in the type of the target, each batch converted before the next one is read."""
    tensors: dict[str, torch.Tensor] = {}
    for batch in _batches(weights):
        whole = {f"model.{name}": torch.empty(weights[name], dtype=torch.float32) for name in batch}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            try:
                dcp.load(whole, storage_reader=reader, no_dist=True)
            except CheckpointException as error:
                raise _cause(error) from None
        for name in batch:
            tensors[name] = whole.pop(f"model.{name}").to(dtype)
        tell({"advance": sum(tensors[name].nbytes for name in batch)})
    return tensors


def _cause(error: CheckpointException) -> BaseException:
    """What torch has wrapped, which is no Exception itself: an interrupt, or a file that cannot be read or is wrong."""
    first: BaseException = next(iter(error.failures.values()))[0]
    return Damaged(str(first)) if isinstance(first, Exception) else first


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors makes files that only their owner can read
    except SafetensorError as error:
        raise OSError(str(error)) from None


def _batches(weights: dict[str, torch.Size]) -> Iterator[list[str]]:
    batch, size = list[str](), 0
    for name, shape in weights.items():
        if batch and size + 4 * shape.numel() > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += 4 * shape.numel()
    if batch:
        yield batch


def _write_config(model: Any, settings: dict[str, Any], tokenizer: Any, dtype: torch.dtype, into: Path) -> None:
    """config.json and generation_config.json, with the tokenizer's special tokens where there is one, else those of the
    config.json that the run began with (settings)."""
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.use_cache = True  # off in training only
    for key in SPECIAL_TOKENS:
        setattr(model.config, key, settings.get(key))
        value = getattr(tokenizer, key, None)
        if value is not None and value < model.config.vocab_size:
            setattr(model.config, key, value)
    model.config.save_pretrained(into)
    type(model.generation_config).from_model_config(model.config).save_pretrained(into)


@contextmanager
def _fresh_folder(target: Path, needed: int) -> Iterator[Path]:
    """A folder beside `target` that gets its name, durable, when the block ends well, and is removed when it does not.

    Raises ConfigError if the target holds something, or if `needed` bytes are not free.
    """
    fix = "name a folder that does not exist yet"
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ConfigError([Problem("--to", str(target), "it exists", fix)], "export")
    temporary = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}.partial")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            [Problem("--to", str(target), f"it cannot be made: {error.strerror}", fix)], "export"
        ) from None
    try:
        free = shutil.disk_usage(temporary).free
        if free < needed:
            why = f"it needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there"
            raise ConfigError([Problem("--to", str(target), why, "free room, or name another file system")], "export")
        yield temporary
        for path in temporary.rglob("*"):
            _sync(path)
        sync_folder(temporary)
        temporary.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    if path.is_dir():
        return sync_folder(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint.export")
    parser.add_argument("folder", type=Path, help="a committed step folder")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--max-shard-gb", type=float, default=5.0)
    args = parser.parse_args(argv)
    target = Target(args.to, getattr(torch, args.dtype), int(args.max_shard_gb * 1e9))
    step = names.step_of(args.folder.name)
    try:
        if step is None or not args.folder.is_dir():
            raise _not_committed(args.folder)
        with Lease(args.folder.parent, step, "checkpoint export"):
            result = export(args.folder, target, lambda record: print(json.dumps(record), flush=True))
    except Damaged as error:
        fix = "export another --step; `holdfast checkpoint verify` shows all damage"
        print(ConfigError([Problem("step", step, str(error), fix)], "export"), file=sys.stderr)
        return 1
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        fix = "free room or repair its rights; nothing was left there"
        print(ConfigError([Problem("--to", str(args.to), f"writing failed: {error}", fix)], "export"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps({"result": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
