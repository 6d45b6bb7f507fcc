"""Runs to report on, and a browser to look at the report with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.goodput.builder")

from tests.goodput.builder import Run  # noqa: E402  its assertions must be rewritten before it is imported
from tests.report.chromium import Page, browser, find_chromium  # noqa: E402

REQUIRED = "HOLDFAST_REQUIRE_CHROMIUM"
"""`.ci/run` sets it to 1 where it could install Chromium: then a missing browser is a failure, not a skip."""


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
    if binary is None:
        why = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(why)
        pytest.skip(why)  # nobody needs a browser to develop the trainer; CI fetches one and forbids this
    with browser(binary, tmp_path_factory.mktemp("chromium")) as tab:
        yield tab
