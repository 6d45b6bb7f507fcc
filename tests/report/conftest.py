"""Runs to report on, and a browser to look at the report with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.goodput.builder")

from tests.goodput.builder import Run  # noqa: E402  its assertions must be rewritten before it is imported
from tests.report.chromium import WITHOUT, Page, browser, find_chromium  # noqa: E402


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """An empty run, at tmp_path/run, where `holdfast run --out tmp_path` would leave it."""
    built = Run(tmp_path / "run")
    yield built
    built.close()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a headless Chromium that reaches no network."""
    binary = find_chromium()
    assert binary is not None, WITHOUT
    with browser(binary, tmp_path_factory.mktemp("chromium")) as tab:
        yield tab
