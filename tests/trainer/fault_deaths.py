"""A program, not a test: what only another process can end, in every phase that the catalogue allows, `python -m
tests.trainer.fault_deaths DIR`. No torch: each case is a fork of this process.

Prints JSON {case: {code, ran_python, ended_by_sigterm}}. A case is KIND-PHASE; code is negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.config.fault_catalogue import catalogue
from holdfast.config.faults import Fault
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from tests.trainer.fault_plans import LETHAL
from trainer.faults import Faults

STEP = 1
"""Also the first start, for the phases that an attempt has once."""
STRUCK_S = 20.0
LOOK_S = 1.0


def main(folder: Path) -> dict[str, Any]:
    """All cases at once."""
    cases = [
        (kind, phase)
        for kind in LETHAL
        for phase, row in catalogue().entries[kind].rows.items()  # type: ignore[index]
        if not row.refused
    ]
    started = {f"{kind}-{phase}": _start(kind, phase, folder / f"{kind}-{phase}") for kind, phase in cases}
    for name in started:
        _await_record(folder / name / "faults")
    time.sleep(0.2)
    before = {name: _beats(folder / name) for name in started}
    time.sleep(LOOK_S)
    after = {name: _beats(folder / name) for name in started}
    for pid in started.values():
        os.kill(pid, signal.SIGTERM)
    time.sleep(LOOK_S)
    found = {}
    for name, pid in started.items():
        ended = os.waitpid(pid, os.WNOHANG)
        if ended[0] == 0:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(ended[1] if ended[0] else os.waitpid(pid, 0)[1])
        found[name] = {"code": code, "ran_python": after[name] > before[name] + 3, "ended_by_sigterm": code == 7}
    return found


def _start(kind: str, phase: Any, folder: Path) -> int:
    run = RunDirectory(folder)
    run.faults.mkdir(parents=True)
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    threading.Thread(target=_beat, args=(folder,), daemon=True).start()
    time.sleep(0.1)
    fault = Fault.model_validate({"kind": kind, "phase": phase, "step": STEP})
    Faults([fault], run, 0, EventLog(run.events, "rank", rank=0)).strike(phase, STEP)
    os._exit(0)  # it did not strike


def _beat(folder: Path) -> None:
    """Runs as long as Python runs in this process."""
    with open(folder / "beats", "ab", buffering=0) as file:
        while True:
            file.write(b".")
            time.sleep(0.02)


def _beats(folder: Path) -> int:
    path = folder / "beats"
    return path.stat().st_size if path.exists() else 0


def _await_record(folder: Path) -> None:
    deadline = time.monotonic() + STRUCK_S
    while not list(folder.glob("*.json")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder}: nothing struck within {STRUCK_S:g} s")
        time.sleep(0.02)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
