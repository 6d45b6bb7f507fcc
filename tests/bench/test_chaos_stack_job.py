"""A job of the campaign `stack` has an end, and nothing of it lives on."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bench.chaos.stack.job import Interrupted, execute, witnesses
from holdfast.local.processes import TOKEN_VARIABLE, processes_with_token

JOB = """
    import json, os, signal, subprocess, sys, time
    out, token, what = sys.argv[1:]
    os.makedirs(out)
    json.dump({"token": token}, open(out + "/run.lock", "w"))
    print("the job is here", flush=True)
    environment = {**os.environ, "%s": token + ".pod"}
    if what != "alone":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=environment)
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(out + "/ready", "w").close()
    if what in ("hangs", "deaf"):
        time.sleep(300)
    sys.exit(7)
"""


def _command(out: Path, what: str) -> tuple[list[str], str]:
    token = f"chaos{os.getpid()}x{time.monotonic_ns()}"
    return [sys.executable, "-c", textwrap.dedent(JOB % TOKEN_VARIABLE), str(out), token, what], token


def test_a_job_that_ends_by_itself_says_its_code_and_leaves_nothing(tmp_path: Path) -> None:
    command, token = _command(tmp_path / "out", "alone")
    ran = execute(command, tmp_path / "out", 30, threading.Event())
    assert (ran.code, ran.left, ran.hung) == (7, [], [])
    assert ran.output.read_text() == "the job is here\n" and not processes_with_token(token)


def test_a_process_that_outlives_its_job_is_named_and_killed(tmp_path: Path) -> None:
    command, token = _command(tmp_path / "out", "orphan")
    ran = execute(command, tmp_path / "out", 30, threading.Event())
    assert ran.code == 7 and len(ran.left) == 1 and "time.sleep(300)" in ran.left[0]
    assert not processes_with_token(token)


def test_a_job_that_hangs_is_killed_after_its_limit_with_what_its_processes_waited_for(tmp_path: Path) -> None:
    command, token = _command(tmp_path / "out", "hangs")
    ran = execute(command, tmp_path / "out", 3, threading.Event())
    assert ran.code is None and 3 <= ran.seconds < 20
    assert any("time.sleep(300)" in witness and " S " in witness for witness in ran.hung)
    assert ran.hung[-1] == "the job is here" and not processes_with_token(token)


def test_a_campaign_that_is_told_to_end_takes_its_job_with_it(tmp_path: Path) -> None:
    command, token = _command(tmp_path / "out", "hangs")
    stopping = threading.Event()

    def stop() -> None:
        deadline = time.monotonic() + 30
        while not (tmp_path / "out" / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        stopping.set()

    teller = threading.Thread(target=stop)
    teller.start()
    try:
        with pytest.raises(Interrupted):
            execute(command, tmp_path / "out", 60, stopping)
    finally:
        teller.join(40)
    assert (tmp_path / "out" / "ready").exists() and not processes_with_token(token)


def test_no_token_means_no_witness() -> None:
    assert witnesses("") == []
