"""The real manifest with the real trainer on this machine, killed in the middle and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.local.processes import processes_with_token
from tests.local.toys import until

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_whose_runner_was_killed_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "holdfast"]
    sets = ["--set", "training.steps=30", "--set", "training.min_step_s=0.2"]
    first = subprocess.Popen([*command, "run", "--profile", "cpu-test", "--out", str(out), *sets], cwd=ROOT)
    try:
        until(lambda: list(out.glob("run/checkpoints/step-00000010/COMMITTED.json")), 150)
        token = json.loads((out / "run.lock").read_text())["token"]
        assert processes_with_token(token)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    time.sleep(3)
    assert processes_with_token(token) == []
    second = subprocess.run(
        [*command, "resume", str(out)], cwd=ROOT, timeout=200, capture_output=True, text=True, check=False
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert "step-00000010" in second.stdout and "checkpoint of step 30 is committed" in second.stdout
    assert "training: step 1 is done" not in second.stdout
