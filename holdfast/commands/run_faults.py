"""Faults from outside the pods, when the run is at a step: a node or the control pod vanishes, a pod is evicted."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from holdfast.commands.run_follow import TrainingEvent
from holdfast.config.schema import Fault
from holdfast.local import Runner
from holdfast.local.report import PodState
from holdfast.run_directory import RunDirectory, write_once


class RunnerFaults:
    """Fires each fault once in the life of the run directory. Fed with events; acts through the runner's verbs."""

    def __init__(self, faults: Iterable[Fault], run: RunDirectory, runner: Runner) -> None:
        self._due = [fault for fault in faults if fault.by_runner and not (run.faults / f"{fault.id}.json").exists()]
        self._run = run
        self._runner = runner
        self._step = -1
        """The latest step that some rank has begun."""
        self._pods: dict[int, list[tuple[float, str]]] = {}
        """rank -> (monotonic time, pod) of each of its processes"""

    def saw(self, event: TrainingEvent) -> None:
        """Learn how far the run is, and which pod has which rank."""
        if event.source != "rank":
            return
        if event.name == "anchor" and event.rank is not None:
            self._pods.setdefault(event.rank, []).append((event.t, str(event.anchor.get("pod"))))
        elif event.name == "attempt_start":
            self._step = max(self._step, 1)  # there is no step before the first that could end
        elif event.name == "step" and event.step is not None:
            self._step = max(self._step, event.step + 1)

    def act(self) -> None:
        """Fire what is due. A fault whose pod is being replaced at the moment waits for the next pod."""
        for fault in [fault for fault in self._due if fault.step <= self._step]:
            pod = self._pod_of(fault)
            if pod is None:
                continue
            self._due.remove(fault)
            # The record comes first, so that no restart fires it again.
            if write_once(self._run.faults / f"{fault.id}.json", fault.model_dump_json()):
                self._runner.record("fault", id=fault.id, kind=fault.kind, rank=fault.rank, step=fault.step)
                self._break(fault, pod)

    def _pod_of(self, fault: Fault) -> PodState | None:
        running = {pod.name: pod for pod in self._runner.pods() if pod.phase == "Running"}
        if fault.kind == "control_loss":
            targets = self._runner.manifest.jobset.success_targets
            return next((pod for pod in running.values() if pod.replicated_job in targets), None)
        processes = [entry for entry in self._pods.get(fault.rank, []) if entry[1] in running]
        return running[max(processes)[1]] if processes else None

    def _break(self, fault: Fault, pod: PodState) -> None:
        runner = self._runner
        if fault.kind == "control_loss":
            done = runner.kill_control()
        elif fault.kind == "sigterm_short_grace":
            done = runner.evict(pod.name, fault.for_s)
        else:
            done = runner.kill_node(pod.node or "")
        done.add_done_callback(lambda future: _complain(fault, future))


def _complain(fault: Fault, done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        print(f"fault {fault.id} could not be done: {error}", flush=True)
