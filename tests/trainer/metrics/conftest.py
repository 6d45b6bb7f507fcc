"""A rank's config, run directory and event log, for the tests of its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import RunConfig, load_profile
from holdfast.run_directory import RunDirectory
from tests.trainer.served import identity
from trainer.metrics.rank import MeasuredLog, RankMetrics


@pytest.fixture
def config() -> RunConfig:
    return load_profile("cpu-test")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def log(config: RunConfig, run: RunDirectory) -> Iterator[MeasuredLog]:
    """An event log of rank 0 with its metrics."""
    made = MeasuredLog(run.events, "rank", rank=0)
    made.listener = RankMetrics(config, identity(), run)
    yield made
    made.close()
