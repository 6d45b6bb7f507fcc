"""Reads synthesized templates from files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from infra.rules.assembly import Assembly

_SUFFIX = ".template.json"


def stack_of(template_path: str | Path) -> str:
    """Name of the stack that a template file belongs to."""
    return Path(template_path).name.removesuffix(_SUFFIX)


def read_assembly(template_paths: Iterable[str | Path]) -> Assembly:
    """Templates of one `cdk.out`, by stack, with the order of stacks from its manifest if that is there."""
    files = [Path(path) for path in template_paths]
    templates = {stack_of(path): json.loads(path.read_text(encoding="utf-8")) for path in files}
    order: dict[str, frozenset[str]] = {}
    for folder in {path.parent for path in files}:
        manifest = folder / "manifest.json"
        if manifest.exists():
            artifacts = json.loads(manifest.read_text(encoding="utf-8")).get("artifacts", {})
            order |= {name: frozenset(artifact.get("dependencies", ())) for name, artifact in artifacts.items()}
    return Assembly(templates=templates, stack_order=order)
