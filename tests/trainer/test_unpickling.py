"""A pickle runs code. Nothing in the trainer unpickles a file except where named here, with the reason why it may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("trainer", "bench/arms")
ALLOWED = {
    "trainer/checkpoint/reader.py: pickle.loads": "DCP's .metadata, from bytes whose checksum matched the marker",
}
UNPICKLERS = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load", "cPickle.loads", "dill.load", "dill.loads",
    "cloudpickle.load", "cloudpickle.loads", "joblib.load", "shelve.open", "marshal.load", "marshal.loads",
}  # fmt: skip


def full_name(node: ast.expr, imported: dict[str, str]) -> str:
    """`pickle.load`, also where `from pickle import load` or `import pickle as p` made it load or p.load."""
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, imported)}.{node.attr}"
    return imported.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def loads_of(source: str) -> Iterator[tuple[str, int, bool]]:
    """(full name, line, is safe) of everything that may unpickle, called or handed on."""
    tree = ast.parse(source)
    imported = imported_names(tree)
    safe = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        values = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        name = full_name(node.func, imported)
        if name == "torch.load" and values.get("weights_only") is True:
            safe.add(node.func)
        if name == "numpy.load" and values.get("allow_pickle", False) is False:
            safe.add(node.func)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            name = full_name(node, imported)
            if name in UNPICKLERS or name in ("torch.load", "numpy.load"):
                yield name, node.lineno, node in safe


def sources() -> dict[str, str]:
    files = [path for place in PLACES for path in sorted((ROOT / place).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def test_only_the_named_places_unpickle_and_torch_load_reads_weights_only() -> None:
    found = {
        f"{file}: {name}": line for file, text in sources().items() for name, line, safe in loads_of(text) if not safe
    }
    unexpected = {f"{place} (line {line})" for place, line in found.items() if place not in ALLOWED}
    assert unexpected == set(), "name it in ALLOWED with a reason, or use weights_only=True"
    assert ALLOWED.keys() - found.keys() == set(), "no longer there: take it out of ALLOWED"


def test_the_search_reads_the_files_that_load() -> None:
    loads = {file for file, text in sources().items() for name, _, _ in loads_of(text) if name == "torch.load"}
    assert any(file.startswith("trainer/checkpoint/") for file in loads)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=safe)",
        "from torch import load as read\nread(path)",
        "import torch\nlist(map(torch.load, paths))",
        "import pickle\npickle.loads(content)",
        "import pickle as p\np.load(file)",
        "from pickle import Unpickler\nclass Mine(Unpickler): pass",
        "def f():\n    from pickle import loads\n    return loads(x)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
    ],
)
def test_the_search_finds(code: str) -> None:
    assert [safe for _, _, safe in loads_of(code)] == [False]


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path)",
        "import pickle\npickle.dumps(value)",
        "import json\njson.load(file)",
    ],
)
def test_the_search_leaves_alone(code: str) -> None:
    assert all(safe for _, _, safe in loads_of(code))
