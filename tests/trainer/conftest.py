"""Small configs for the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.config import RunConfig, load_profile

Configure = Callable[..., RunConfig]


def configured(*overrides: str) -> RunConfig:
    """The cpu-test profile with overrides."""
    return load_profile("cpu-test", overrides)


@pytest.fixture
def configure() -> Configure:
    """`configure("model.layers=1", ...)`: the cpu-test profile with overrides."""
    return configured
