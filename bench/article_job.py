"""One arm's job of bench.article: `holdfast run` as a process in a folder that outlives the call of the bench."""

from __future__ import annotations

import enum
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.article_rows import make_row
from bench.demo import ROOT
from holdfast.config import RunConfig, dump
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run
from holdfast.local.shim import die_with_parent
from holdfast.run_directory import write_atomically

STOP_S = 45.0
"""So long before the deadline a job is asked to save and leave; at the deadline it is killed."""
KILL_S = 5.0
"""Of STOP_S, for what comes after: reading events, writing the result."""


def command(profile: Path, out: Path) -> list[str]:
    """The job's command line; on a folder that holds a run it goes on with it."""
    return [sys.executable, "-m", "holdfast", "run", "--profile", str(profile), "--out", str(out)]


class Ended(enum.Enum):
    """How a job's run in this call ended."""

    COMPLETE = "complete"
    CUT_SHORT = "cut short"
    FAILED = "failed"


class Job:
    """A job and its folder: config.yaml as asked for, out/ of `holdfast run`, output.txt of all calls."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._folder = folder
        self._config = config
        self._profile = folder / "config.yaml"
        self.out = folder / "out"
        self.code: int | None = None
        """Exit code of `holdfast run`; None if it had to be killed."""

    def prepare(self) -> bool:
        """Whether the folder holds this very job, cut short. One of another config is deleted."""
        text = dump(self._config)
        if self._profile.exists() and self._profile.read_text(encoding="utf-8") == text:
            return (self.out / "run").exists()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        write_atomically(self._profile, text)
        return False

    def run(self, end: float) -> Ended:
        """Run it until it ends, or until STOP_S before `end` (monotonic)."""
        with open(self._folder / "output.txt", "ab") as output:
            # Killed, its pods end with it. In a group of its own: a Ctrl-C is this process's, which then kills it.
            process = subprocess.Popen(
                command(self._profile, self.out),
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,
            )
            try:
                self.code = _wait(process, end - STOP_S)
                if self.code is not None:
                    return Ended.FAILED if self.code else Ended.COMPLETE
                process.send_signal(signal.SIGTERM)
                self.code = _wait(process, end - KILL_S)
                # It may have come to its end just then.
                return Ended.COMPLETE if self.code == 0 else Ended.CUT_SHORT
            finally:
                process.kill()
                process.wait()

    def row(self, arm: str, commit: str | None) -> dict[str, Any]:
        """What its ledger says."""
        timeline = read_run(self.out / "run")
        return make_row(arm, self._config, timeline, account(timeline), commit)

    def set_aside(self, word: str) -> Path:
        """Move the folder out of the way of the next job of this arm; where it is then."""
        kept = self._folder.with_name(f"{self._folder.name}.{word}")
        shutil.rmtree(kept, ignore_errors=True)
        return self._folder.rename(kept)


def _wait(process: subprocess.Popen[bytes], until: float) -> int | None:
    """Its exit code, or None if it still runs at `until` (monotonic)."""
    limit_s = until - time.monotonic()
    try:
        return process.wait(None if limit_s == float("inf") else max(0.0, limit_s))
    except subprocess.TimeoutExpired:
        return None
