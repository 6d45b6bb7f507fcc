"""Small JobSets whose commands are shell scripts, and a runner in a thread to run them."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from holdfast.local import RunFolder, Runner, RunnerOptions, read_documents
from holdfast.local.processes import processes_with_token
from holdfast.local.report import Happening, PodState, RunEnded

LIMIT_S = 20.0
FAST = RunnerOptions(back_off_s=0.1, replace_lost_nodes_after_s=0.3, probe_period_s=0.1, limit_s=LIMIT_S)
FOREVER = "trap 'exit 75' TERM; while :; do sleep 0.05; done"
Document = dict[str, Any]
H = TypeVar("H", bound=Happening)


def job(
    name: str,
    script: str,
    *,
    replicas: int = 1,
    backoff_limit: int = 0,
    depends_on: str | None = None,
    grace_s: int = 5,
    container: Document | None = None,
    volumes: list[Document] | None = None,
) -> Document:
    """A replicated job shaped as ours: one pod per Job, fail on 78 and 93, ignore disruptions where it may retry."""
    rules: list[Document] = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [78, 93]}}]
    if backoff_limit:
        rules.append({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
    made: Document = {
        "name": name,
        "replicas": replicas,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": 1,
                "parallelism": 1,
                "backoffLimit": backoff_limit,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": rules},
                "template": {
                    "metadata": {"labels": {"role": name}},
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": grace_s,
                        "containers": [{"name": "main", "command": ["sh", "-c", script], **(container or {})}],
                        "volumes": volumes or [],
                    },
                },
            }
        },
    }
    if depends_on:
        made["dependsOn"] = [{"name": depends_on, "status": "Ready"}]
    return made


def jobset(*jobs: Document, max_restarts: int = 0, success: str = "control", **spec: Any) -> Document:
    """A JobSet with our policies."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "toy", "namespace": "space"},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": "toy"},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [success]},
            "failurePolicy": {
                "maxRestarts": max_restarts,
                "restartStrategy": "Recreate",
                "rules": [{"name": "terminal", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": list(jobs),
            **spec,
        },
    }


def budget(name: str, min_available: int) -> Document:
    """A disruption budget over one replicated job."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {
            "minAvailable": min_available,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {"jobset.sigs.k8s.io/replicatedjob-name": name}},
        },
    }


class Running:
    """A run in another thread, with everything it told."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.told: list[Happening] = []
        self.ended: RunEnded | None = None
        runner.observe(self.told.append)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.ended = self.runner.run(handle_signals=False)

    def of(self, kind: type[H]) -> list[H]:
        """What was told of one kind."""
        return [happening for happening in list(self.told) if isinstance(happening, kind)]

    def pod(self, replicated_job: str, index: int = 0, not_named: str = "") -> PodState:
        """Wait until that pod runs and its command has decided what to do about SIGTERM; its state."""

        def running() -> PodState | None:
            for pod in self.runner.pods():
                if (pod.replicated_job, pod.index) == (replicated_job, index) and pod.name != not_named:
                    return pod if _minds_sigterm(pod.pid) else None
            return None

        return until(running)

    def result(self) -> RunEnded:
        """Wait for the end."""
        self._thread.join(LIMIT_S + 10)
        assert self.ended is not None
        return self.ended

    def output(self) -> str:
        """Logs of all pods, in the order of their names."""
        return "".join(log.read_text() for log in sorted(self.runner.folder.path.glob("pods/logs/*.log")))


def _minds_sigterm(pid: int | None) -> bool:
    """Whether the process, no more a fork of its shim, catches or ignores SIGTERM."""
    try:
        if "shim.py" in Path(f"/proc/{pid}/cmdline").read_text():
            return False
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn", "SigCgt"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


T = TypeVar("T")


def until(condition: Callable[[], T | None], limit_s: float = 10.0) -> T:
    """Poll until the condition gives something true; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def running(out: Path, *documents: Document, options: RunnerOptions = FAST, **more: Any) -> Iterator[Running]:
    """Start the documents in `out`. At the end the run is stopped, and no process of it may be alive."""
    with RunFolder(out) as folder:
        runner = Runner(read_documents(documents), folder, events=out / "events", options=options, **more)
        run = Running(runner)
        try:
            yield run
        finally:
            runner.stop("the test is over", 0.0)
            run.result()
            assert processes_with_token(folder.token) == []
