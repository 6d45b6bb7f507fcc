"""Jobs in peace, each run once and kept, and the comparison of a job's final weights with theirs, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

from bench.chaos.processes import Zygote
from bench.chaos.stack.job import run_job
from bench.chaos.stack.schedule import Schedule
from holdfast.config import dump, names
from holdfast.run_directory import read_json, write_atomically

COMPARE_LIMIT_S = 60.0
PEACE_LIMIT_S = 180.0
PRELOAD = ("torch", "torch.distributed.checkpoint", "trainer.checkpoint.compare")


class BrokenPeace(Exception):
    """A job without any fault did not become complete: nothing can be compared with it."""


class Weights:
    """Compares in a process that has torch. Use as a context manager; may be called from several threads."""

    def __init__(self, folder: Path, code: str, stopping: threading.Event) -> None:
        """folder: where jobs in peace are kept. code: hash of what trains; jobs of other code are run anew."""
        self._folder = folder
        self._code = code
        self._stopping = stopping
        self._zygote = Zygote(folder / "zygote.log", PRELOAD)
        self._comparing = threading.Lock()
        self._running = threading.Lock()
        self._last = 0

    def __enter__(self) -> Weights:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._zygote.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._zygote.__exit__()

    def differences(self, schedule: Schedule, run_dir: Path) -> list[str]:
        """What of the final weights and optimizer state is not as in peace; empty if they are the same bit for bit.

        Raises BrokenPeace, or Interrupted.
        """
        clean = self.peace(schedule)
        with self._comparing:
            self._last += 1
            log = self._folder / f"compare-{self._last}.log"
            environment = {"OMP_NUM_THREADS": "1", "PATH": os.environ.get("PATH", ""), "PYTHONWARNINGS": "ignore"}
            arguments = [str(clean), str(run_dir)]
            process = self._zygote.start("trainer.checkpoint.compare", arguments, environment, self._folder, log)
            code = process.wait(COMPARE_LIMIT_S)
            if code is None:
                process.kill()
        text = log.read_text(encoding="utf-8", errors="replace")
        log.unlink()
        answer = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
        if code == 0 and answer is not None and answer["identical"] and answer["step"] == schedule.steps:
            return []
        what = text.strip()[-300:] if answer is None else ", ".join(answer["different"][:3])
        return [f"final weights are not those of a job in peace (exit code {code}): {what}"]

    def peace(self, schedule: Schedule) -> Path:
        """Run directory of the job in peace that has the schedule's weights."""
        config = schedule.peace()
        key = hashlib.sha256(f"{self._code}\0{dump(config)}".encode()).hexdigest()[:16]
        out = self._folder / f"peace-{key}"
        with self._running:
            if read_json(out.with_suffix(".json")) is None:
                shutil.rmtree(out, ignore_errors=True)
                ran = run_job(config, out, PEACE_LIMIT_S, self._stopping)
                complete = read_json(ran.run_dir / names.COMPLETE) or {}
                if ran.code != 0 or complete.get("step") != schedule.steps:
                    raise BrokenPeace(f"exit code {ran.code} after {ran.seconds:.0f} s; its output is in {ran.output}")
                write_atomically(out.with_suffix(".json"), json.dumps({"seconds": ran.seconds}))
        return out / "run"
