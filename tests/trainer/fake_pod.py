"""A supervisor of a pod whose launchers are shell scripts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from holdfast.config import dump, load_profile, names
from holdfast.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0


def wait_for(what: Callable[[], object]) -> None:
    """Poll until it holds, at most for LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class FakePod:
    """A supervisor whose launchers are scripts. In a script, $RUN is the run directory and $SCRATCH the pod's own."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.run = RunDirectory(self.run_dir)
        self._folder = folder
        self._bin = folder / "bin"
        self._scratch = folder / "scratch"
        for made in (self.run_dir, self._bin, self._scratch):
            made.mkdir()
        self._started: list[subprocess.Popen[str]] = []

    def take(self, attempt: int = 0) -> None:
        """Own the run, as the control pod does."""
        self.run.take(nodes=2, job="job", jobset_attempt=attempt, pod="control", lease_s=0.1)

    def start(
        self,
        script: str,
        role: str = "worker",
        *sets: str,
        port: int = 1,
        without: str = "",
        add: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start the supervisor. sets: overrides of cpu-test. without: a variable that is missing. add: further ones."""
        for name in ("ft_launcher", "nvrx-control", "torchrun"):
            (self._bin / name).write_text(f"#!/bin/sh\n{script}\n")
            (self._bin / name).chmod(0o755)
        config = self._folder / "config.yaml"
        if not config.exists():
            config.write_text(dump(load_profile("cpu-test", sets)))
        environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUN": str(self.run_dir),
            "SCRATCH": str(self._scratch),
            "PYTHON": sys.executable,
            names.ENV_POD: "pod",
            names.ENV_NODE: "node",
            names.ENV_POD_IP: "127.0.0.1",
            names.ENV_SCRATCH: str(self._scratch),
            names.ENV_STORAGE: str(self._folder),
            names.ENV_STORE: f"127.0.0.1:{port}",
            names.ENV_MASTER: "127.0.0.1",
            names.ENV_JOB: "job",
            names.ENV_JOBSET_ATTEMPT: "0",
            names.ENV_GROUP_RANK: "0",
        }
        environment.pop(without, None)
        environment.update(add or {})
        command = [sys.executable, "-m", "trainer.supervisor", role, "--config", str(config)]
        process = subprocess.Popen(
            [*command, "--run-dir", str(self.run_dir)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def ends(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output

    def until_ready(self) -> None:
        """Wait until the launcher runs and has said so in $SCRATCH/up."""
        deadline = time.monotonic() + LIMIT_S
        while not ((self._scratch / names.READY_FILE).exists() and (self._scratch / "up").exists()):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """What the script has written into $SCRATCH/up."""
        return [int(word) for word in (self._scratch / "up").read_text().split()]

    def monitored(self, pid: int, started: str) -> None:
        """Say what the rank with this pid and this start says when it has opened its first section."""
        (self._scratch / f"monitored-{pid}").write_text(started)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What supervisors have logged under this name."""
        lines = [line for log in self.run.events.glob("supervisor*.jsonl") for line in log.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["name"] == name]

    def close(self) -> None:
        """Kill what is left. A killed supervisor cannot end its launcher: on a node the container ends with it."""
        for process in self._started:
            below: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.communicate(timeout=10)


def runs(pid: int) -> bool:
    """Whether there is such a process, zombies apart."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
