"""Weights of a folder into a sharded model: each rank reads the rows of its own shards and nothing else.

Only where training starts: a run that has a checkpoint never reads them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from holdfast.config import ConfigError, Problem
from trainer.initial import own_part
from trainer.model_folder import keep, place, unusable
from trainer.weights import KEY, TYPES, Stored, Weights, open_weights

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.train import Survivors

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

AT_ONCE_BYTES = 1 << 28
"""Of the file, per read: what a rank holds beside its shards."""
_SHOWN = 3
_HARMLESS = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$")
"""Buffers that older versions of transformers saved and newer ones compute."""


def begin(step: int, model: torch.nn.Module, survivors: Survivors) -> None:
    """Load model.weights if training begins; do nothing where `step` has been restored, or without a folder.
    Collective. Raises ConfigError, on all ranks alike, if they do not fit; OSError if they cannot be read.
    """
    config, rank = survivors.config, survivors.identity.rank
    if config.model.folder is not None:
        _require_one_model(config.model.folder, config.model.settings)
    if step:
        return
    if config.model.weights is not None:
        start = time.monotonic()
        folder = place(config, survivors.storage)
        weights, names = _together(lambda: _found(model, folder))
        _require_same(KEY, str(folder), "weights", weights.identity)
        size = _together(lambda: load(model, weights, names))
        seconds = max(time.monotonic() - start, 1e-9)
        survivors.log.lasted(
            "weights",
            start,
            folder=str(weights.folder),
            identity=weights.identity,
            bytes=size,
            gb_per_s=round(size / 1e9 / seconds, 3),
        )
        logger.info(
            "start from %s (%s): %.3f GB in %.2f s, %.2f GB/s on this rank",
            *(weights.folder, weights.identity, size / 1e9, seconds, size / 1e9 / seconds),
        )
    if rank == 0:
        keep(config, survivors.run)


def matched(model: torch.nn.Module, weights: Weights) -> dict[str, str]:
    """Name in the model -> name in the files, of every tensor that is saved. Raises ConfigError for missing, unexpected
    and wrongly shaped ones, all in one message."""
    wanted, twins = _wanted(model)
    renamed = _renamed(model, wanted, weights.tensors)
    found, missing = dict[str, str](), list[str]()
    for name in wanted:
        source = next((one for one in (name, *twins.get(name, ())) if one in renamed), None)
        if source is None:
            missing.append(name)
        else:
            found[name] = renamed[source]
    twin_names = {twin for names in twins.values() for twin in names}
    harmless = _harmless(model)
    surplus = [
        stored
        for name, stored in renamed.items()
        if name not in wanted and name not in twin_names and not any(one.search(name) for one in harmless)
    ]
    wrong = list(_misfits(wanted, found, weights.tensors))
    if missing or surplus or wrong:
        kinds = (("missing", missing), ("not of this model", surplus), ("of another kind", wrong))
        why = "; ".join(f"tensors {kind} ({len(ones)}): {_some(ones)}" for kind, ones in kinds if ones)
        fix = (
            "use the weights that belong to this config.json; of families with fused experts, what "
            "save_pretrained(FOLDER, save_original_format=False) writes"
        )
        raise unusable(KEY, str(weights.folder), why, fix)
    return found


def load(model: torch.nn.Module, weights: Weights, names: Mapping[str, str]) -> int:
    """Read this rank's part of every tensor, in float32, in place. Returns the bytes read. Raises ConfigError if a
    value is no finite number, OSError if a file cannot be read any more.

    names: of `matched`. File by file, so that each is opened once.
    """
    targets, _ = _wanted(model)
    by_file: dict[Path, list[str]] = {}
    for name, stored in names.items():
        by_file.setdefault(weights.tensors[stored].file, []).append(name)
    size = 0
    for file, members in sorted(by_file.items()):
        try:
            with torch.no_grad(), safe_open(file, framework="pt") as opened:
                size += sum(_read(opened, names[name], targets[name]) for name in members)
        except SafetensorError as error:
            raise OSError(f"{file}: {error}") from None
    broken = [name for name in names if not bool(own_part(targets[name]).isfinite().all())]
    if broken:
        why = f"tensors with values that are no finite numbers ({len(broken)}): {_some(broken)}"
        raise unusable(KEY, str(weights.folder), why, "download or copy the folder again")
    return size


def _found(model: torch.nn.Module, folder: Path) -> tuple[Weights, dict[str, str]]:
    weights = open_weights(folder)
    return weights, matched(model, weights)


def _together(work: Callable[[], _T]) -> _T:
    """What `work` returns, if it returns on all ranks. What it raises on one of them, all raise: no rank waits in a
    collective for one that has left. Collective."""
    result, problems, broken = None, list[Problem](), ""
    try:
        result = work()
    except ConfigError as error:
        problems = list(error.problems)
    except OSError as error:
        broken = f"rank {dist.get_rank()}: {error}"
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, (problems, broken))
    for theirs, _ in seen:
        if theirs:
            raise ConfigError(theirs, "model")
    for _, why in seen:
        if why:
            raise OSError(why)
    return cast(_T, result)


def _require_one_model(folder: tuple[str, str], settings: object) -> None:
    """Ranks that build different models from folders of one name would average gradients of different functions."""
    text = json.dumps(settings, sort_keys=True)
    _require_same(*folder, "contents of config.json", hashlib.sha256(text.encode()).hexdigest())


def _require_same(key: str, folder: str, what: str, digest: str) -> None:
    """Raises ConfigError on all ranks if they do not see the same. Collective."""
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, digest)
    if len(set(seen)) > 1:
        where = ", ".join(f"rank {rank}: {one[:12]}" for rank, one in enumerate(seen))
        raise unusable(key, folder, f"ranks see different {what} ({where})", "give all nodes the same files")


def _wanted(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """Name -> tensor of all that is saved, tied ones once; and the other names of those."""
    state: dict[str, torch.Tensor] = dict(model.named_parameters())
    saved = model.state_dict()
    state |= {name: buffer for name, buffer in model.named_buffers() if name in saved}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    twins: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in state:
            twins.setdefault(names[id(parameter)], []).append(name)
    return state, twins


def _renamed(model: torch.nn.Module, wanted: Mapping[str, object], stored: Mapping[str, object]) -> dict[str, str]:
    """Name as the model has it -> name in the files. Files of the base model, like GPT-2's on the hub, leave out the
    prefix that the model with its output layer has."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    if prefix == "." or any(name.startswith(prefix) for name in stored):
        return {name: name for name in stored}
    return {name if name in wanted else f"{prefix}{name}": name for name in stored}


def _harmless(model: torch.nn.Module) -> list[re.Pattern[str]]:
    """Names that the files may have and the model not: buffers that it computes, and what the family says itself."""
    saved = model.state_dict()
    computed = [f"^{re.escape(name)}$" for name, _ in model.named_buffers() if name not in saved]
    own = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return [_HARMLESS, *(re.compile(pattern) for pattern in (*computed, *own))]


def _misfits(
    wanted: Mapping[str, torch.Tensor], found: Mapping[str, str], stored: Mapping[str, Stored]
) -> Iterator[str]:
    for name, source in found.items():
        shape, there = tuple(wanted[name].shape), stored[source]
        if there.shape != shape:
            yield f"{source} has the shape {list(there.shape)} and should have {list(shape)}"
        elif there.type not in TYPES and wanted[name].is_floating_point():
            yield f"{source} is of type {there.type} and should be one of {', '.join(sorted(TYPES))}"


def _read(opened: Any, name: str, target: torch.Tensor) -> int:
    """Copy this rank's rows, some at a time. FSDP cuts the first dimension, and not always evenly."""
    first, part = _own_rows(target)
    if part.numel() == 0:
        return 0
    if part.ndim == 0:
        whole = opened.get_tensor(name)
        part.copy_(whole)
        return int(whole.nbytes)
    rows = opened.get_slice(name)
    step = max(1, AT_ONCE_BYTES // max(1, 8 * part[0].numel()))
    size = 0
    for row in range(0, len(part), step):
        count = min(step, len(part) - row)
        some = rows[first + row : first + row + count]
        part[row : row + count].copy_(some)
        size += some.nbytes
    return size


def _own_rows(target: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The first row of this rank's part, and the part, to be written in place."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    part = own_part(target)
    if not isinstance(target, DTensor):
        return 0, part
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    if part.numel() and (tuple(shape) != tuple(part.shape) or any(offset[1:])):
        raise RuntimeError(f"a shard of {tuple(part.shape)} at {tuple(offset)} is not cut along its first dimension")
    return int(offset[0]) if offset else 0, part


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
