"""How NVRx's wrapper is set up, where its own defaults would not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config import load_profile, profile_names
from trainer.restart.in_process import PENDING_CALLS, watchdog_interval

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", profile_names())
def test_a_main_thread_that_does_not_run_is_known_in_half_of_the_soft_timeout(name: str) -> None:
    recovery = load_profile(name).recovery
    seconds = watchdog_interval(recovery).total_seconds()
    assert 0 < seconds <= recovery.in_process_interval_s
    assert PENDING_CALLS * seconds <= recovery.in_process_soft_timeout_s / 2


@pytest.mark.slow
@pytest.mark.parametrize(("where", "attempts"), [("starting", 1), ("off", 1), ("started", 2)])
def test_a_start_may_stand_still_longer_than_the_soft_timeout_and_what_comes_after_may_not(
    where: str, attempts: int
) -> None:
    """case-16: a rank that waits in native code for a slow peer's restore, or for a compiler, is no hang."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = subprocess.run(
        [sys.executable, "-m", "tests.trainer.in_process_rank", f"127.0.0.1:{store.port}", where],
        cwd=ROOT,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    assert said.stdout.splitlines() == [f"attempt {number}" for number in range(attempts)]
