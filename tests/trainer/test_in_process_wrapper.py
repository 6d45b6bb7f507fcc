"""How NVRx's wrapper is set up, where its own defaults would not do."""

from __future__ import annotations

import pytest

from holdfast.config import load_profile, profile_names
from trainer.restart.in_process import PENDING_CALLS, watchdog_interval


@pytest.mark.parametrize("name", profile_names())
def test_a_main_thread_that_does_not_run_is_known_in_half_of_the_soft_timeout(name: str) -> None:
    recovery = load_profile(name).recovery
    seconds = watchdog_interval(recovery).total_seconds()
    assert 0 < seconds <= recovery.in_process_interval_s
    assert PENDING_CALLS * seconds <= recovery.in_process_soft_timeout_s / 2
