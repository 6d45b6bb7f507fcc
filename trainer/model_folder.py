"""The folder that describes a model: where it lies for this process, and what its config.json says. No torch here.

What config.json says becomes model.settings of the run's config before anything is built, and with the config it goes
into every checkpoint: a restart and an export build the same model, and another one is refused. The run directory keeps
a copy, so that a run that has begun outlives its folder.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from holdfast.config import ConfigError, Problem, RunConfig
from holdfast.config.model import how_to_get
from holdfast.run_directory import RunDirectory, read_json, write_atomically

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
KEPT = "model.json"
"""In the run directory: model.settings of the run, once it has begun."""
_OURS = (
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
    "attn_implementation", "_attn_implementation", "experts_implementation",
)  # fmt: skip
"""Keys of config.json that do not describe the model, but how somebody has run it."""


def settled(config: RunConfig, storage: Path, run: RunDirectory) -> RunConfig:
    """The config with model.settings from the folder's config.json, where it names a folder.

    storage: the shared storage as it is mounted here. A folder that is gone is no reason to end a run that has begun:
    then the copy counts. Raises ConfigError.
    """
    if config.model.folder is None:
        return config
    key, named = config.model.folder
    folder = place(config, storage)
    kept = read_json(run.path / KEPT)
    if kept is not None and not _there(folder / CONFIG_FILE):
        logger.warning("%s = %s cannot be read any more: its config.json is taken from %s", key, named, run.path)
        return with_settings(config, kept)
    found = read_settings(folder, key, config)
    if config.model.settings not in (None, found):
        why = f"{key}={named} has a config.json, and that counts"
        raise ConfigError([Problem("model.settings", config.model.settings, why, "leave it out")], "model")
    return with_settings(config, found)


def with_settings(config: RunConfig, settings: dict[str, Any]) -> RunConfig:
    """The config with these model.settings."""
    return config.model_copy(update={"model": config.model.model_copy(update={"settings": settings})})


def keep(config: RunConfig, run: RunDirectory) -> None:
    """Put model.settings beside the checkpoints to come. One process per run."""
    if config.model.folder is not None:
        write_atomically(run.path / KEPT, json.dumps(config.model.settings, indent=2) + "\n")


def place(config: RunConfig, storage: Path) -> Path:
    """The folder as this process sees it: what lies below the mount of the shared storage in a pod lies below
    `storage` here."""
    assert config.model.folder is not None
    path, mount = Path(config.model.folder[1]), config.storage.mount_path
    return storage / path.relative_to(mount) if path.is_relative_to(mount) else path


def read_settings(folder: Path, key: str, config: RunConfig) -> dict[str, Any]:
    """What config.json says about the model. key: dotted key that names the folder. Raises ConfigError."""
    path = folder / CONFIG_FILE
    try:
        problem = _problem_of_folder(folder, key, config)
        if problem is not None:
            raise ConfigError([problem], "model")
        found = json.loads(path.read_bytes())
    except OSError as error:
        why = f"{error.filename or path} cannot be read: {error.strerror}"
        raise unusable(key, str(folder), why, "repair its rights, or what it lies on") from None
    except ValueError as error:
        why = f"config.json is not JSON ({error})"
        raise unusable(key, str(folder), why, "download or copy it again") from None
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        why = "config.json names no model_type, so it is not that of a Hugging Face model"
        raise unusable(key, str(folder), why, "name a folder that `hf download` or save_pretrained has written")
    if "quantization_config" in found:
        why = "its weights are quantized (quantization_config), and training needs them in float32 or 16 bits"
        raise unusable(key, str(folder), why, "use the unquantized model")
    return {name: value for name, value in found.items() if name not in _OURS}


def unusable(key: str, folder: str, why: str, fix: str) -> ConfigError:
    """The one thing that is wrong with a folder, as an error."""
    return ConfigError([Problem(key, folder, why, fix)], "model")


def _there(path: Path) -> bool:
    """Whether the file can be seen."""
    try:
        return path.exists()
    except OSError:
        return False


def _problem_of_folder(folder: Path, key: str, config: RunConfig) -> Problem | None:
    if not folder.exists():
        fix = "correct the path, or put the model there: "
        return Problem(key, str(folder), "there is no such folder on this node", fix + _download(folder, config))
    if not folder.is_dir():
        return Problem(key, str(folder), "it is a file", "name the folder that holds config.json and the weights")
    if not (folder / CONFIG_FILE).exists():
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        fix = "name the folder that `hf download` or save_pretrained has written"
        return Problem(key, str(folder), f"it holds no config.json; there is {there}", fix)
    return None


def _download(folder: Path, config: RunConfig) -> str:
    return how_to_get(f"ORGANIZATION/{folder.name}", config.storage.mount_path)
