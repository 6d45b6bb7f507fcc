"""Pods started by hand, without the runner: for what no JobSet does, like two generations that live side by side."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import launch
from holdfast.config import dump, load_profile, names
from holdfast.local.processes import TOKEN_VARIABLE
from tests.e2e.harness import LIMIT_S, ROOT, Member, RunFiles, end_all, members, originals, until


class Pods(RunFiles):
    """Supervisors of one run directory, below `out` as `holdfast run` lays it out. Ends them all on leaving."""

    def __init__(self, out: Path, *sets: str, environment: Mapping[str, str] | None = None) -> None:
        """environment: variables that the pods have beside those of the manifest."""
        self.config = load_profile("cpu-test", sets)
        self.out = out
        super().__init__(out / "fsx" / "runs" / self.config.name)
        self._more = dict(environment or {})
        self._token = os.urandom(8).hex()
        self._scratch = Path(f"/tmp/hf-e2e-{self._token[:6]}")  # unix sockets: 107 characters at most
        self._profile = out / "run.yaml"
        self._started: list[Pod] = []
        out.mkdir(parents=True)
        self._profile.write_text(dump(self.config))

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._token)
        for pod in self._started:
            pod.wait(10)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start(self, attempt: int = 0, job: str = "job") -> list[Pod]:
        """All pods of one attempt of a JobSet, control first; returned when the workers were started."""
        port = free_port()
        control = self.pod(names.CONTROL, 0, port, attempt, job)
        until("the control pod is ready", lambda: control.code() is not None or _listens(port), 30)
        assert control.code() is None, control.log
        workers = [self.pod("worker", index, port, attempt, job) for index in range(self.config.pods)]
        return [control, *workers]

    def pod(self, role: str, index: int, port: int, attempt: int = 0, job: str = "job") -> Pod:
        """Start one pod."""
        name = f"{job}-{attempt}-{role}-{index}"
        scratch = self._scratch / name
        scratch.mkdir(parents=True)
        environment = {
            **self._manifest_environment(role, job, scratch),
            **self._more,
            names.ENV_POD: name,
            names.ENV_NODE: f"node-{index}",
            names.ENV_POD_IP: f"127.0.{attempt}.{index + 2}",
            names.ENV_STORE: f"127.0.0.1:{port}",
            names.ENV_JOB: job,
            names.ENV_JOBSET_ATTEMPT: str(attempt),
            names.ENV_GROUP_RANK: str(index),
            TOKEN_VARIABLE: f"{self._token}.{name}",
        }
        pod = Pod(role, environment, [str(self._profile), str(self.run_dir)], self.out / f"{name}.log")
        self._started.append(pod)
        return pod

    def _manifest_environment(self, role: str, job: str, scratch: Path) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}
        for variable in launch.pod_environment(self.config, job, role):
            # All pods would serve their metrics at one and the same port of this machine.
            if variable.value is not None and variable.name != names.ENV_METRICS:
                value = variable.value.replace(names.SCRATCH_MOUNT, str(scratch)).replace("eth0", "lo")
                environment[variable.name] = value.replace(self.config.storage.mount_path, str(self.out / "fsx"))
        return environment


class Pod:
    """One supervisor and what is below it."""

    def __init__(self, role: str, environment: Mapping[str, str], paths: Sequence[str], log: Path) -> None:
        """paths: config file and run directory."""
        self._token = environment[TOKEN_VARIABLE]
        self._log = log
        config, run_dir = paths
        command = [sys.executable, "-m", "trainer.supervisor", role, "--config", config, "--run-dir", run_dir]
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """Its output."""
        return self._log.read_text()

    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self._process.poll()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pod did not end within {limit_s:g} s:\n{self.log}") from None

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def members(self) -> list[Member]:
        """Its processes."""
        return members(self._token)

    def rank(self) -> int:
        """Pid of its rank."""
        return until("the pod has a rank", lambda: [m.pid for m in originals(self.members()) if m.role == "rank"])[0]


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True
