"""A run through the synthesized manifest whose cluster the test holds in its hands: nodes go and come at its word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.commands.run_folder import prepare, run_directory
from holdfast.commands.run_job import synthesize
from holdfast.config import load_profile, names
from holdfast.local import RunFolder, Runner, RunnerOptions, load_manifest
from holdfast.local.processes import processes_with_token
from holdfast.local.report import PodState, RunEnded
from tests.e2e.harness import LIMIT_S, RunFiles, until

T = TypeVar("T")
LASTING = RunnerOptions(replace_lost_nodes_after_s=None)
"""A lost node stays lost until the test adds one."""


class LiveCluster(RunFiles):
    """`with LiveCluster(out, *sets) as cluster:` runs the job in another thread. Nothing of it is left at the end."""

    def __init__(self, out: Path, *sets: str, options: RunnerOptions = LASTING) -> None:
        """sets: key=value overrides of cpu-test."""
        super().__init__(out / "run")
        self.config = load_profile("cpu-test", sets)
        self.ended: RunEnded | None = None
        self._folder = RunFolder(out)
        self._options = options

    def __enter__(self) -> LiveCluster:
        folder = self._folder.__enter__()
        run = run_directory(folder.layout, self.config)
        manifest = load_manifest(synthesize(prepare(folder.path, run, self.config), folder.path / "manifest"))
        self.runner = Runner(manifest, folder, events=run.events, options=self._options)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        self.ended = self.runner.run(handle_signals=False)

    def __exit__(self, *_: object) -> None:
        token = self._folder.token
        self.runner.stop("the test is over", 0.0)
        self._thread.join(30)
        self._folder.__exit__(None, None, None)
        assert processes_with_token(token) == []

    def until(self, what: str, condition: Callable[[], T | None], limit_s: float = LIMIT_S) -> T:
        """Poll as long as the run goes on."""

        def checked() -> T | None:
            value = condition()
            assert value or self.ended is None, f"the run ended before: {what}\n{self.ended}\n{self.logs()}"
            return value

        return until(what, checked, limit_s)

    def until_finished(self, step: int, generation: int | None = None) -> None:
        """Wait for the end of a step."""
        self.until(f"step {step} is finished", lambda: self.finished(generation) >= step)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Exit code of the run."""
        self._thread.join(limit_s)
        assert self.ended is not None, f"the run did not end within {limit_s:g} s:\n{self.logs()}"
        return self.ended.code

    def worker(self, index: int) -> PodState:
        """The worker pod of a node index, once it runs."""

        def found() -> PodState | None:
            pods = [pod for pod in self.runner.pods() if (pod.replicated_job, pod.index) == (names.WORKERS, index)]
            return next((pod for pod in pods if pod.phase == "Running"), None)

        return self.until(f"worker pod {index} runs", found)

    def node_of(self, pod: str) -> str:
        """The node that a pod runs on."""
        return next(str(there.node) for there in self.runner.pods() if there.name == pod)

    def lose(self, index: int) -> str:
        """The node of a worker pod vanishes, with all that runs on it; the name of the pod."""
        pod = self.worker(index)
        self.runner.kill_node(str(pod.node)).result(10)
        return pod.name

    def add_node(self) -> None:
        """A new node for a worker pod that has none."""
        self.runner.add_node(names.WORKERS).result(10)

    def logs(self, lines: int = 40) -> str:
        """The end of each pod's output."""
        found = sorted(self._folder.path.glob("pods/logs/*.log"))
        ends = [f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-lines:]) for log in found]
        return "\n".join(ends)
