"""Two runs on one machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import RunFiles, Training


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_runs_at_once_in_two_folders_do_not_disturb_each_other(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-14: ports, addresses and sockets of their own, although the runs have the same name. The second shell's
    limit of open files is below what ranks need, as 1024 is for a large model."""
    with Training(tmp_path / "a") as first, Training(tmp_path / "b", open_files=100) as second:
        assert first.wait() == 0, first.output
        assert second.wait() == 0, second.output
    for run in (first, second):
        assert_same_weights(run)
        assert not run.events("jobset_restart", source="runner") and run.ledger().recoveries == ()
