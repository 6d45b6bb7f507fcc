"""A writer never outlives its trainer, at whatever moment that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import time
from trainer.checkpoint import writer

if __name__ == "__main__":
    caller = writer._Caller(cpu_shm_mode=True)
    caller._start_worker(0)  # and no request is sent
    print(caller.process.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("after_s", [0.0, 12.0], ids=["while it imports torch", "while it waits for its first request"])
def test_a_writer_that_never_got_a_request_dies_with_its_trainer(tmp_path: Path, after_s: float) -> None:
    """Seen once in 200 random kills: it waited on for ever, since it holds both ends of its own queue."""
    program = tmp_path / "trainer_of_a_writer.py"
    program.write_text(PROGRAM)
    trainer = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert trainer.stdout is not None
    writer = psutil.Process(int(trainer.stdout.readline()))
    time.sleep(after_s)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    psutil.wait_procs([writer], 60)
    assert not writer.is_running() or writer.status() == psutil.STATUS_ZOMBIE
