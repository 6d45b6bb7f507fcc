"""A run directory that tests fill with event logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.goodput.builder")

from tests.goodput.builder import Run  # noqa: E402  its assertions must be rewritten before it is imported


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """An empty run, at tmp_path/run, where `holdfast run --out tmp_path` would leave it."""
    built = Run(tmp_path / "run")
    yield built
    built.close()
