"""Faults on purpose strike the rank and step that they name, once in the life of a run directory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import multiprocessing
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.faults import Fault, FaultKind
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from trainer.faults import Faults, InjectedFault


def faults(folder: Path, kind: FaultKind, rank: int = 1) -> Faults:
    """One fault at step 5 of rank 1, as the rank `rank` of a new process sees it."""
    run = RunDirectory(folder)
    return Faults([Fault(kind=kind, rank=1, step=5, for_s=1)], run, rank, EventLog(run.events, "rank", rank=rank))


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Fault events."""
    lines = [line for log in (folder / "events").iterdir() for line in log.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["name"] == "fault"]


def test_an_exception_strikes_at_its_step_and_never_again_in_this_run(tmp_path: Path) -> None:
    """case-17: neither the same process, nor one after a restart, nor a second look at the same step."""
    first = faults(tmp_path, "exception")
    for step in range(1, 5):
        first.strike("forward", step)
    with pytest.raises(InjectedFault, match="exception-rank1-step5"):
        first.strike("forward", 5)
    first.strike("forward", 5)
    faults(tmp_path, "exception").strike("forward", 5)
    (event,) = recorded(tmp_path)
    assert (event["id"], event["rank"], event["step"]) == ("exception-rank1-step5", 1, 5)
    assert json.loads((tmp_path / "faults/exception-rank1-step5.json").read_text())["kind"] == "exception"


def test_other_ranks_steps_and_the_runners_faults_are_left_alone(tmp_path: Path) -> None:
    faults(tmp_path, "exception", rank=0).strike("forward", 5)
    faults(tmp_path, "exception").strike("forward", 6)
    faults(tmp_path, "node_loss").strike("forward", 5)
    faults(tmp_path, "control_loss").strike("forward", 5)
    assert recorded(tmp_path) == [] and not (tmp_path / "faults").exists()


def _strike(folder: str) -> None:
    faults(Path(folder), "rank_sigkill").strike("forward", 5)


def test_a_killed_rank_has_left_its_record_and_its_event_before_it_died(tmp_path: Path) -> None:
    codes = []
    for _ in range(2):
        process = multiprocessing.get_context("spawn").Process(target=_strike, args=(str(tmp_path),))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL, 0]
    assert len(recorded(tmp_path)) == 1


def test_a_hang_can_be_ended_by_an_exception_from_another_thread(tmp_path: Path) -> None:
    """Layer 1 ends a hung attempt so; a wait in the kernel would not notice."""
    raised: list[BaseException] = []

    def hang() -> None:
        try:
            faults(tmp_path, "hang").strike("forward", 5)
        except KeyboardInterrupt as error:
            raised.append(error)

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not ((tmp_path / "events").exists() and recorded(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    assert thread.is_alive() and len(recorded(tmp_path)) == 1
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
    thread.join(20)
    assert raised and not thread.is_alive()


@pytest.mark.parametrize(("kind", "loss"), [("nan_loss", math.nan), ("loss_spike", 200.0)])
def test_a_broken_loss_is_that_of_its_step_only_and_breaks_the_gradient_too(
    tmp_path: Path, kind: FaultKind, loss: float
) -> None:
    import torch  # here: the processes that other tests start import this file too

    struck = faults(tmp_path, kind)
    weight = torch.ones(1, requires_grad=True)
    for step in (4, 5, 6):
        struck.strike("forward", step)
        value = struck.on_loss(step, 2 * weight.sum())
        (gradient,) = torch.autograd.grad(value, weight)
        expected = (loss, loss) if step == 5 else (2.0, 2.0)
        assert (value.item(), gradient.item()) == pytest.approx(expected, nan_ok=True)
    assert recorded(tmp_path) == [], "to the ledger it is no failure"
    assert "disturbance" in next((tmp_path / "events").iterdir()).read_text()


def _freeze(folder: str) -> None:
    faults(Path(folder), "rank_sigstop").strike("forward", 5)


def test_a_frozen_rank_goes_on_after_its_time(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_freeze, args=(str(tmp_path),))
    process.start()
    states = set()
    deadline = time.monotonic() + 60
    while process.is_alive():
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError):
            states.add(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.02)
    assert "T" in states and process.exitcode == 0
