"""NVRx's launcher with its fixed pauses cut short does the same, and another NVRx is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from holdfast import launch
from holdfast.config import load_profile
from tests.trainer.fake_pod import runs
from tests.trainer.standby_parts import until
from trainer.restart import launcher

ROOT = Path(__file__).parents[2]
IGNORES = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
OBEYS = "import sys, time; print('up', flush=True)"


@pytest.fixture
def groups() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate(timeout=10)


def start(groups: list[subprocess.Popen[str]], code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    groups.append(process)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


class Sleeps:
    """Counts what would have been slept, and lets no time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        self._real = time.sleep
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._real(0.001)


def test_groups_in_which_nothing_runs_any_more_cost_no_pause(
    groups: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart: the ranks were waited for before. A zombie is an orphan that the supervisor collects."""
    ended, zombie = start(groups, OBEYS), start(groups, OBEYS)
    for process in (ended, zombie):
        os.kill(process.pid, signal.SIGKILL)
    ended.wait(10)
    until(lambda: not runs(zombie.pid))
    sleeps = Sleeps(monkeypatch)
    launcher.end_groups({ended.pid, zombie.pid})
    assert sleeps.slept == []


def test_what_obeys_sigterm_is_waited_for_and_what_ignores_it_is_killed(groups: list[subprocess.Popen[str]]) -> None:
    obeys, ignores = start(groups, OBEYS), start(groups, IGNORES)
    bystander = start(groups, OBEYS)
    since = time.monotonic()
    launcher.end_groups([obeys.pid, ignores.pid])
    assert time.monotonic() - since >= launcher.PAUSE_S, "what ignores SIGTERM has the whole pause"
    assert (obeys.wait(10), ignores.wait(10)) == (-signal.SIGTERM, -signal.SIGKILL)
    assert bystander.poll() is None


def test_the_group_of_a_whole_pod_is_left_alone() -> None:
    launcher.end_groups([1, os.getpgid(0)])  # would end this test


def test_only_the_fixed_pause_of_the_rendezvous_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = Sleeps(monkeypatch)
    clock = launcher.Clock()
    for seconds in (0.1, launcher.PAUSE_S, 3.0):
        clock.sleep(seconds)
    assert sleeps.slept == [0.1, launcher.LOOK_S, 3.0]
    assert clock.monotonic is time.monotonic


PATCHED = """
import inspect, re
from importlib import metadata
if {version!r}:
    metadata.version = lambda name: {version!r}
from nvidia_resiliency_ext.fault_tolerance import ft_rendezvous_barrier, launcher, utils
before = launcher.terminate_mp_processes, ft_rendezvous_barrier.time
from trainer.restart import launcher as ours
print(ours.shorten())
print(launcher.terminate_mp_processes is ours.end_groups, isinstance(ft_rendezvous_barrier.time, ours.Clock))
print((launcher.terminate_mp_processes, ft_rendezvous_barrier.time) == before)
print(inspect.getsource(before[0]).count("time.sleep(1.0)"), list(inspect.signature(before[0]).parameters))
waits = inspect.getsource(ft_rendezvous_barrier).count("time.sleep(1.0)")
loop = inspect.getsource(ft_rendezvous_barrier._RendezvousBarrierState._wait_for_rendezvous_open)
print(waits, loop.count("time.sleep(1.0)"))
"""


def printed(version: str) -> list[str]:
    code = PATCHED.format(version=version)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, cwd=ROOT, check=True
    )
    return done.stdout.splitlines()


def test_the_installed_nvrx_has_exactly_the_pauses_that_are_cut() -> None:
    """One in terminate_mp_processes, and both of the rendezvous in the loop that waits for a round to open."""
    assert metadata.version("nvidia_resiliency_ext") == launcher.VERSION
    assert printed("") == ["True", "True True", "False", "1 ['allowed_pgids']", "2 2"]


def test_another_version_is_not_touched() -> None:
    assert printed("0.7.0")[:3] == ["False", "False False", "True"]


def test_both_console_scripts_start_through_it_if_and_only_if_the_config_says_so() -> None:
    for wanted in (False, True):
        config = load_profile("cpu-test", [f"recovery.short_pauses={str(wanted).lower()}"])
        argv = launch.control_argv(config, generation=1, nodes=2, port=1)
        before = ["python", "-m", "trainer.restart.launcher"] if wanted else []
        assert argv[: len(before) + 1] == [*before, "nvrx-control"]
