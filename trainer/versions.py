"""Which libraries this rank runs on: a number in a report means little without them."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from holdfast import __version__

DISTRIBUTIONS = ("torch", "nvidia-resiliency-ext", "transformers", "numpy")


def versions() -> str:
    """`holdfast 0.1.0, python 3.12.3, torch 2.11.0+cu130, CUDA 13.0, ...`, for the event log. Imports nothing; asked
    after torch has been imported, it names torch's CUDA as well."""
    found = [f"holdfast {__version__}", f"python {platform.python_version()}"]
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue  # built from source without metadata; the others are still worth naming
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return ", ".join([*found, *([f"CUDA {cuda}"] if cuda else [])])
