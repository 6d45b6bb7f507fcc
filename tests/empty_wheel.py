"""An empty package under NVRx's name, for tests that must not use the network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(folder: Path, version: str) -> None:
    """Write nvidia_resiliency_ext-<version>-py3-none-any.whl into folder."""
    info = f"nvidia_resiliency_ext-{version}.dist-info"
    with zipfile.ZipFile(folder / f"nvidia_resiliency_ext-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
