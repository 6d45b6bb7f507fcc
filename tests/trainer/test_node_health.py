"""The supervisor's answer to NVRx's own question whether this node is fit, and its own look at an idle spare."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck

from trainer.restart.node_health import NodeHealth


class Launcher:
    """A launcher with or without ranks."""

    def __init__(self, ranks: int = 0) -> None:
        self.count = ranks
        self.asked_to_end = 0
        self.killed = 0

    def ranks(self) -> list[int]:
        return list(range(self.count))

    def terminate(self) -> None:
        self.asked_to_end += 1

    def kill_all(self) -> None:
        self.killed += 1


@pytest.fixture
def findings() -> list[str]:
    return []


@pytest.fixture
def health(tmp_path: Path, findings: list[str]) -> Iterator[NodeHealth]:
    with NodeHealth(tmp_path / "health.sock", lambda: list(findings), spare_check_interval_s=0.05) as started:
        yield started


def watched(health: NodeHealth, launcher: Any, until: Any) -> None:
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        health.look_after(launcher)
        time.sleep(0.01)


def test_nvrx_s_own_client_hears_what_preflight_finds_at_that_moment(
    tmp_path: Path, health: NodeHealth, findings: list[str]
) -> None:
    asks = NodeHealthCheck(endpoint=str(tmp_path / "health.sock"))
    assert asks() is True and health.unfit == ""
    findings.append("/local: GPU 3 has fallen off the bus.")
    assert asks() is False
    assert health.unfit == "/local: GPU 3 has fallen off the bus."


def test_an_unfit_spare_is_ended_once_and_killed_if_it_does_not_end(
    health: NodeHealth, findings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.restart.node_health.STOP_S", 0.2)
    launcher = Launcher()
    findings.append("bad")
    watched(health, launcher, lambda: launcher.asked_to_end)
    watched(health, launcher, lambda: launcher.killed)
    assert launcher.asked_to_end == 1 and health.unfit == "bad"


def test_a_launcher_with_ranks_is_not_looked_at_between_restarts(health: NodeHealth, findings: list[str]) -> None:
    """Its ranks would be lost; NVRx asks when they are lost anyway."""
    launcher = Launcher(ranks=2)
    findings.append("bad")
    deadline = time.monotonic() + 0.5
    watched(health, launcher, lambda: time.monotonic() > deadline)
    assert launcher.asked_to_end == 0 and health.unfit == ""


def test_a_fit_spare_is_left_alone_and_a_check_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    calls = []

    def hangs() -> list[str]:
        calls.append(time.monotonic())
        time.sleep(2 if len(calls) > 3 else 0)
        return []

    launcher = Launcher()
    with NodeHealth(tmp_path / "h.sock", hangs, spare_check_interval_s=0.05) as health:
        watched(health, launcher, lambda: len(calls) > 3)
        since = time.monotonic()
        health.look_after(launcher)  # type: ignore[arg-type]
        assert time.monotonic() - since < 1
    assert launcher.asked_to_end == 0


def test_a_file_system_that_stalls_once_ends_no_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.restart.node_health.RECHECK_S", 0.05)
    looks: list[int] = []

    def stalls_once() -> list[str]:
        looks.append(1)
        return ["a small write took longer than 30 s"] if len(looks) == 2 else []

    launcher = Launcher()
    with NodeHealth(tmp_path / "h.sock", stalls_once, spare_check_interval_s=0.05) as health:
        watched(health, launcher, lambda: len(looks) > 4)
    assert launcher.asked_to_end == 0 and health.unfit == ""


@pytest.mark.parametrize(("takes_s", "is_waited_for"), [(0.5, True), (20.0, False)])
def test_its_end_waits_for_an_answer_under_way_but_not_for_a_dead_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, is_waited_for: bool
) -> None:
    """An answer that comes later would be about a node in which another launcher runs by then."""
    monkeypatch.setattr("trainer.restart.node_health.CLOSE_S", 2.0)
    asked, over, answered = threading.Event(), threading.Event(), threading.Event()

    def looks() -> list[str]:
        asked.set()
        over.wait(takes_s)
        answered.set()
        return []

    with NodeHealth(tmp_path / "h.sock", looks, spare_check_interval_s=9):
        threading.Thread(target=NodeHealthCheck(endpoint=str(tmp_path / "h.sock")), daemon=True).start()
        assert asked.wait(20)
        since = time.monotonic()
    assert answered.is_set() is is_waited_for and time.monotonic() - since < 10
    over.set()
