"""The house rules: who may import whom (function-local imports too), where the doors to NVRx are, and file sizes."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "holdfast": {"holdfast", "pydantic", "yaml", "numpy", "rich", "psutil", "pyarrow", "xxhash", "plotly", "scipy"},
    "infra": {"infra", "holdfast", "aws_cdk", "constructs", "jsii", "pydantic"},
    "k8s": {"k8s", "holdfast", "cdk8s", "constructs", "yaml"},
    "trainer": {
        "trainer",
        "holdfast",
        "torch",
        "nvidia_resiliency_ext",
        "transformers",
        "numpy",
        "psutil",
        "prometheus_client",
        # What NVRx asks about a node's health with; it comes with NVRx.
        "grpc",
        "safetensors",
        "huggingface_hub",
        "pyarrow",
    },
    "bench": {"bench", "holdfast", "rich", "yaml", "numpy"},
    # Processes of its own, which bench starts and never imports: what they compare is torch's and NVRx's.
    "bench/arms": {
        "bench",
        "holdfast",
        "trainer",
        "torch",
        "transformers",
        "torchtitan",  # where it is installed
        "nvidia_resiliency_ext",
        "numpy",
        "psutil",
    },
    "bootstrap": {"bootstrap"},
    "app.py": {"infra", "k8s", "holdfast", "aws_cdk", "cdk_nag"},
}
"""What each may import beside the standard library. Anything else runs as a subprocess, or has its door elsewhere."""

ROOMS = {
    "holdfast.config": {"holdfast.config"},
    "holdfast.launch": {"holdfast.config"},
    "holdfast.metrics": set(),
    "holdfast.run_directory": {"holdfast.config", "holdfast.process_identity"},
    "holdfast.process_identity": set(),
    "holdfast.members": {"holdfast.config", "holdfast.run_directory"},
    "holdfast.checkpoint_folder": {"holdfast.config", "holdfast.run_directory"},
    "holdfast.lineage": {"holdfast.config", "holdfast.run_directory"},
    "holdfast.leases": {"holdfast.config"},
    "holdfast.terminal": {"holdfast.config", "holdfast.run_directory"},
    "holdfast.last_failure": {"holdfast.config", "holdfast.run_directory"},
    "holdfast.faults": {"holdfast.faults", "holdfast.config"},
    "holdfast.goodput": {"holdfast.goodput", "holdfast.config", "holdfast.run_directory"},
    # plotly, its plotting library, is in no training image: only the command that writes a page imports it.
    "holdfast.report": {"holdfast.report", "holdfast.goodput", "holdfast.config", "holdfast.run_directory"},
    # It executes any manifest: it knows of events and of nothing else that training has.
    "holdfast.local": {"holdfast.local", "holdfast.config", "holdfast.goodput.events"},
}
"""Inside holdfast: what each room may import of the others. The command line may import all."""

DOORS = {
    "nvidia_resiliency_ext.inprocess": ("trainer/restart/",),
    "nvidia_resiliency_ext.fault_tolerance": ("trainer/restart/",),
    # The bench measures NVRx's own ways of saving beside ours.
    "nvidia_resiliency_ext.checkpointing": ("trainer/checkpoint/", "bench/arms/"),
    "plotly": ("holdfast/report/",),
    # Special functions and minimization, for planning. Not in the training image: imported where they are called.
    "scipy": ("holdfast/goodput/model/", "holdfast/goodput/simulate/", "holdfast/goodput/planner/"),
}
"""Modules that these folders alone may import."""

NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
MAX_LINES = 300
NOT_OURS = {"dist", "cdk.out", "node_modules", "__pycache__"}
BINARY = {".png", ".jpg", ".gz", ".parquet"}


class Import(NamedTuple):
    """One imported module, with the place where it is imported."""

    module: str
    file: str
    line: int


def imports_of(path: Path) -> Iterator[Import]:
    """Every import in a file, at any depth; `from package import module` counts as package.module."""
    file = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, file, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.split("/")[: -node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(f"{module}.{alias.name}", file, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, file, node.lineno)


def our_files(place: str = ".") -> Iterator[Path]:
    """Our files below a folder, or the one file that is named; nothing that was generated or installed."""
    start = ROOT / place
    if start.is_file():
        yield start
    for folder, folders, files in os.walk(start):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS and (name[0] != "." or name == ".ci"))
        yield from (Path(folder) / name for name in sorted(files))


def python_files(place: str = ".") -> list[Path]:
    """Our Python files below a folder, or the one file that is named."""
    return [path for path in our_files(place) if path.suffix == ".py"]


def package_of(path: Path) -> str:
    """The innermost package of the table that a file belongs to."""
    file = path.relative_to(ROOT).as_posix()
    return max((name for name in PACKAGES if file == name or file.startswith(f"{name}/")), key=len)


def inside(module: str, package: str) -> bool:
    """Whether module is package or lies in it."""
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    legal = PACKAGES[package]
    wrong = [
        f"{found.file}:{found.line} imports {found.module}"
        for path in python_files(package)
        if package_of(path) == package
        for found in imports_of(path)
        if found.module.split(".")[0] not in legal | sys.stdlib_module_names
    ]
    assert wrong == [], f"{package} may import {', '.join(sorted(legal))} and the standard library"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_holdfast_imports_only_its_foundations(room: str) -> None:
    place = room.replace(".", "/")
    place = place if (ROOT / place).is_dir() else f"{place}.py"
    wrong = [
        f"{found.file}:{found.line} imports {found.module}"
        for path in python_files(place)
        for found in imports_of(path)
        if inside(found.module, "holdfast") and not any(inside(found.module, legal) for legal in ROOMS[room])
    ]
    assert wrong == [], f"{room} may import {', '.join(sorted(ROOMS[room]))}"


@pytest.mark.parametrize("module", DOORS)
def test_nvrx_and_plotly_have_their_doors(module: str) -> None:
    wrong = [
        f"{found.file}:{found.line} imports {found.module}"
        for place in PACKAGES
        for path in python_files(place)
        for found in imports_of(path)
        if inside(found.module, module) and not found.file.startswith(DOORS[module])
    ]
    assert wrong == [], f"only {' and '.join(DOORS[module])} may import {module}"


def test_the_bench_starts_its_arms_and_never_imports_them() -> None:
    wrong = [
        f"{found.file}:{found.line} imports {found.module}"
        for path in python_files("bench")
        if package_of(path) == "bench"
        for found in imports_of(path)
        if inside(found.module, "bench.arms")
    ]
    assert wrong == [], "an arm is a process of its own; the driver has no torch"


def test_the_walk_sees_imports_inside_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "package").mkdir()
    code = (
        "def f():\n    import torch\n    from . import x\n    from ..top import y\n    import_module('aws_cdk.eks')\n"
    )
    (tmp_path / "package" / "module.py").write_text(code)
    found = list(imports_of(tmp_path / "package" / "module.py"))
    assert [(one.module, one.line) for one in found] == [
        ("torch", 2),
        ("package.x", 3),
        ("top.y", 4),
        ("aws_cdk.eks", 5),
    ]


def test_the_tables_name_every_package_of_the_tree() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    packages |= {path.name for path in ROOT.glob("*.py")}
    assert packages - {"tests"} <= set(PACKAGES)


def test_no_file_is_named_after_nothing() -> None:
    wrong = [str(path.relative_to(ROOT)) for path in python_files() if path.stem in NAMES_THAT_SAY_NOTHING]
    assert wrong == [], "name a file after what it does"


def test_no_python_file_is_longer_than_a_person_reads() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}, f"at most {MAX_LINES} lines"


def test_no_text_file_contains_the_path_of_this_checkout() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in our_files()
        if path.suffix not in BINARY and str(ROOT) in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert wrong == [], "a path of one machine means nothing on another"
