"""The weights of a Hugging Face folder: which tensors its safetensors files hold, read from their headers alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trainer.model_folder import CONFIG_FILE, unusable

KEY = "model.weights"
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TYPES = {"F64", "F32", "F16", "BF16"}
"""Of tensors that training can start from."""
_AGAIN = "download or copy the folder again"
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: shape in elements, type by safetensors' name."""

    file: Path
    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True)
class Weights:
    """tensors: by their names in the files. size: bytes of all files. identity: digest of config.json, sizes and
    headers; another one means other weights, and the same one all but certainly the same."""

    folder: Path
    tensors: Mapping[str, Stored]
    size: int
    identity: str


def open_weights(folder: Path) -> Weights:
    """Raises ConfigError if the folder has no weights that can be read, or not all that its index lists."""
    files, listed = _files(folder)
    tensors: dict[str, Stored] = {}
    digest = hashlib.sha256()
    try:
        digest.update((folder / CONFIG_FILE).read_bytes())
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode() + _header(file))
            tensors.update(_tensors(file))
    except OSError as error:
        raise unusable(KEY, str(folder), f"it cannot be read: {error}", "repair its rights, or copy it again") from None
    for name, file in listed.items():
        if name not in tensors or tensors[name].file != file:
            raise unusable(KEY, str(folder), f"{INDEX} lists {name} in {file.name}, which does not hold it", _AGAIN)
    return Weights(folder, tensors, sum(file.stat().st_size for file in files), digest.hexdigest()[:32])


def _files(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files, and which tensor the index expects in which of them: none, where one file holds all."""
    if (folder / ONE_FILE).exists():
        return [folder / ONE_FILE], {}
    if not (folder / INDEX).exists():
        raise unusable(KEY, str(folder), *_without_weights(folder))
    listed = {name: folder / file for name, file in _weight_map(folder).items()}
    files = sorted(set(listed.values()))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        why = f"{INDEX} lists {len(files)} files, and {len(missing)} of them are not there: {', '.join(missing[:3])}"
        raise unusable(KEY, str(folder), why, _AGAIN)
    return files, listed


def _weight_map(folder: Path) -> dict[str, str]:
    try:
        found: Any = json.loads((folder / INDEX).read_bytes())["weight_map"]
        if found and all(isinstance(file, str) and Path(file).name == file for file in found.values()):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise unusable(KEY, str(folder), f"{INDEX} is not a list of tensors and their files", _AGAIN)


def _without_weights(folder: Path) -> tuple[str, str]:
    """Why, and what to do."""
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if any(name.startswith("adapter_model") for name in names):
        fix = "merge it into its base model (peft: merge_and_unload), and name the folder that save_pretrained writes"
        return "it holds an adapter, not the weights of a model", fix
    if pickles:
        why = f"its weights are pickles ({pickles[0]}), which can run any code when they are read"
        fix = (
            "use the safetensors files of the same model, or, if you trust them, write such files once: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
        return why, fix
    fix = "name the folder that `hf download` or save_pretrained has written, or write model.config for random values"
    return f"it holds neither {ONE_FILE} nor {INDEX}", fix


def _header(file: Path) -> bytes:
    """Names, types, shapes and places of all tensors, as they stand in the file."""
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        return opened.read(min(length, 1 << 27))


def _tensors(file: Path) -> Iterator[tuple[str, Stored]]:
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                part = opened.get_slice(name)
                yield name, Stored(file, tuple(part.get_shape()), part.get_dtype())
    except SafetensorError as error:
        why = f"{file.name} is cut off or damaged ({error})"
        raise unusable(KEY, str(file.parent), why, _AGAIN) from None
