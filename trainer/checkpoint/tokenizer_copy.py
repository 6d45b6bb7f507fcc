"""The tokenizer that a run used, put beside its exported weights where it lies on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.data.tokenizer import BYTES


def copy_tokenizer(config: dict[str, Any], storage: Path, into: Path) -> tuple[Any, str]:
    """Write the tokenizer's files into a folder. The tokenizer or None, and a sentence for people. No network.

    config: of the run, as it is in state.json. storage: the shared storage as it is mounted here.
    """
    name = config["data"]["tokenizer"]
    if name == BYTES:
        return None, "tokenizer: none is needed; the run was trained on bytes, token ids are byte values"
    folder = _folder(name, config["storage"]["mount_path"], storage)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError):
        return (
            None,
            f"tokenizer: data.tokenizer = {name!r} is not on this machine; put its files into the folder yourself",
        )
    tokenizer.save_pretrained(into)
    return tokenizer, f"tokenizer: copied from {folder if folder.is_dir() else name}"


def _folder(name: str, mount_path: str, storage: Path) -> Path:
    """Relative names start at the storage; what was below its mount in the pods lies below it here too."""
    path = Path(name)
    return storage / (path.relative_to(mount_path) if path.is_relative_to(mount_path) else path)
