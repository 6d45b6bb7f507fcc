"""How NVRx's wrapper is set up, where its own defaults would not do."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.config import load_profile, profile_names
from trainer.restart import in_process
from trainer.restart.idle import IDLE_ATTEMPTS
from trainer.restart.in_process import PENDING_CALLS, watchdog_interval

ROOT = Path(__file__).parents[2]


def one_rank(where: str, code: int = 0) -> list[str]:
    """What a rank under the wrapper has printed (in_process_rank.py)."""
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
    assert said.returncode == code, said.stderr[-3000:]
    return said.stdout.splitlines()


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
    assert one_rank(where) == [f"attempt {number}" for number in range(attempts)]


@pytest.mark.slow
def test_layer_1_does_not_strike_in_a_word_to_the_rank_monitor() -> None:
    assert one_rank("atomic") == ["attempt 0", "whole", "attempt 1"]


def test_a_process_that_gets_nowhere_ends_for_layer_2_to_start_another() -> None:
    """Seed 157 of the schedules: 1,403 attempts in a row, none of which could reach the rank monitor."""
    *attempts, end = one_rank("idle", code=1)
    assert attempts == [f"attempt {number}" for number in range(IDLE_ATTEMPTS)]
    assert end == "ended: it gets nowhere"


def test_attempts_that_finish_steps_are_not_counted_as_idle() -> None:
    assert one_rank("slow") == [f"attempt {number}" for number in range(9)]


def test_a_rank_that_nvrx_has_called_unresponsive_leaves_no_key_that_its_barrier_cannot_read() -> None:
    """NVRx 0.6.0 hands its own termination barrier the store's bytes; then every rank's end was a ValueError."""
    import torch.distributed as dist
    from nvidia_resiliency_ext.inprocess.sibling_monitor import SiblingMonitor
    from nvidia_resiliency_ext.inprocess.store import PrefixStore

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = in_process.control_store()(f"127.0.0.1:{server.port}", "inprocess/g1-c0")
    iteration = PrefixStore(0, ours)
    for rank in range(2):
        iteration.set_initial_rank(rank, rank)
    second = timedelta(seconds=1)
    watcher = SiblingMonitor(iteration, 0, 2, initial_world_size=2, timeout=second, interval=second)
    watcher.terminate_unresponsive_ranks({1})
    for rank in (1, 0):  # the one that was given up comes to its end too
        ours.termination_barrier(ranks=[rank], rendezvous_count=2, timeout=timedelta(0))  # as the wrapper ends
