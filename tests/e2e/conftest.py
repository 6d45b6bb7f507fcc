"""One unbroken run that all others are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.local.processes import processes_with_token
from tests.e2e.harness import RunFiles, Training, compare


@dataclass(frozen=True)
class Clean:
    """A finished run of cpu-test that nothing has disturbed. left: its processes, right after it ended."""

    out: Path
    code: int
    output: str
    left: list[int]
    files: RunFiles


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The run that all others are compared with."""
    out = tmp_path_factory.mktemp("clean") / "out"
    with Training(out) as training:
        code = training.wait()
        left = processes_with_token(training.token)
        return Clean(out, code, training.output, left, RunFiles(out / "run"))


@pytest.fixture
def assert_same_weights(clean: Clean) -> Callable[[RunFiles], None]:
    """Fails unless a run ended with the weights and the optimizer state of the clean run, bit for bit."""

    def check(run: RunFiles) -> None:
        answer = compare(clean.files.run_dir, run.run_dir)
        assert answer["identical"], answer
        assert answer["step"] == 20 and answer["parameters"] > 50_000

    return check
