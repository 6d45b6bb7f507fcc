"""What every test relies on: Node for jsii from the virtual environment, and GPU tests that skip with a reason."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# pytest-timeout limits a test as a whole; hypothesis's 200 ms per example only makes slow machines fail.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

# jsii (cdk8s, aws_cdk) starts the Node that it is told to; a machine without one has the one from requirements.txt.
os.environ.setdefault("JSII_NODE", str(Path(sys.executable).with_name("node")))


@cache
def why_no_gpu() -> str:
    """Why GPU tests cannot run here; empty if they can. Imports torch (seconds) only where a GPU device exists."""
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return "no NVIDIA GPU on this machine"
    import torch

    return "" if torch.cuda.is_available() else "an NVIDIA GPU is there, but this torch build cannot use it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where there is no GPU."""
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))
