"""Runs one JobSet to its end: a single-threaded loop over pods, Jobs, nodes and the verbs that others ask for."""

from __future__ import annotations

import selectors
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.events import EventLog
from holdfast.local import report
from holdfast.local.addresses import Addresses
from holdfast.local.folder import RunFolder
from holdfast.local.job import Job
from holdfast.local.jobset import JobSetController
from holdfast.local.kubelet import Kubelet
from holdfast.local.nodes import Cluster
from holdfast.local.objects import Manifest
from holdfast.local.options import RunnerOptions
from holdfast.local.pod import KILL_LIMIT_S, Pod
from holdfast.local.probes import Readiness
from holdfast.local.verbs import Verbs

TICK_S = 0.03
"""Longest sleep of the loop. Ends of processes and verbs wake it at once; deadlines and probes wait for the tick."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Hook = Callable[[], None]


class Runner(Verbs):
    """One run of one manifest in one folder.

    run() blocks until every pod has gone. The verbs (see Verbs) may be called from any thread meanwhile, and from hooks
    and observers, which are called in the loop's thread and must not block.
    """

    def __init__(
        self,
        manifest: Manifest,
        folder: RunFolder,
        *,
        events: Path,
        options: RunnerOptions | None = None,
        observers: Sequence[report.Observer] = (),
        hooks: Sequence[Hook] = (),
    ) -> None:
        """events: folder for the runner's own event log. hooks: called on every turn of the loop.

        Raises ConfigError if this machine cannot run the manifest or the port asked for is taken.
        """
        super().__init__()
        self.manifest = manifest
        self.folder = folder
        self.options = options or RunnerOptions()
        self._observers = list(observers)
        self._hooks = list(hooks)
        self.cluster = Cluster(manifest.jobset, self.options.replace_lost_nodes_after_s)
        self._addresses = Addresses()
        declared = [
            (host, port) for host, job in manifest.jobset.hosts.items() for _, port in job.job.pod.container.ports
        ]
        try:
            self.ports = self._addresses.ports(declared, self.options.port)
        except BaseException:
            self._addresses.close()
            raise
        self._kubelet = Kubelet(manifest, folder.layout, self._addresses, self.ports, folder.token)
        self._controller = JobSetController(manifest.jobset)
        self._log = EventLog(events, "runner")
        self._readiness: dict[str, Readiness] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.wake_descriptor, selectors.EVENT_READ)
        self._signals = 0
        self._signal = 0
        self._stopped = ""

    def record(self, name: str, **fields: Any) -> None:
        """Write a point into the runner's event log."""
        self._log.point(name, **fields)

    def observe(self, observer: report.Observer) -> None:
        """Tell this observer too."""
        self._observers.append(observer)

    def add_hook(self, hook: Hook) -> None:
        """Call this too on every turn of the loop."""
        self._hooks.append(hook)

    def run(self, handle_signals: bool = True) -> report.RunEnded:
        """Run to the end.

        handle_signals (main thread only): SIGINT and SIGTERM end every pod in order, a second one kills. Whatever
        happens, no process of the run is alive afterwards.
        """
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS} if handle_signals else {}
        try:
            self.record("run_start")
            self._tell(report.RunStarted(self.manifest.jobset.name, self.folder.path, dict(self.ports)))
            self._loop()
            ended = self._result()
            self.record("run_end", code=ended.code)
            self._tell(ended)
            return ended
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()

    def _loop(self) -> None:
        deadline = None if self.options.limit_s is None else time.monotonic() + self.options.limit_s
        while self._controller.status == "active" or self.live:
            for key, _ in self._selector.select(TICK_S):
                if key.data is not None:
                    self._hear(key.data)
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._stop(f"the limit of {self.options.limit_s:g} s is over", None)
                deadline = None
            self._collect(now)
            self.perform(now)
            for hook in self._hooks:
                hook()
            self._reconcile(now)
            self.publish()

    def _hear(self, pod: Pod) -> None:
        assert pod.process is not None
        for message in pod.process.messages():
            if "exec" in message:
                self._readiness[pod.name].answered(message["exec"], message["code"])

    def _collect(self, now: float) -> None:
        """Deadlines, probes and ends of pods; arrivals of nodes."""
        for pod in list(self.live):
            pod.enforce(now)
            if pod.process is not None and not pod.ended:
                self._readiness[pod.name].tick(now)
                if pod.ready != pod.told_ready:
                    pod.told_ready = pod.ready
                    self._tell(report.PodReady(pod.name, pod.ready))
                pod.exit_code = pod.process.exit_code()
            if pod.ended:
                self._pod_ended(pod, now)
        for node in self.cluster.replacements(now):
            self._tell(report.NodeAdded(node.name, node.pool))

    def _pod_ended(self, pod: Pod, now: float) -> None:
        self.live.remove(pod)
        self.cluster.free(pod.name)
        job = self._controller.owner(pod.job, pod.attempt)
        if pod.process is not None:
            self._selector.unregister(pod.process)
            pod.process.close()
            self._kubelet.forget(pod)
            self._tell_end(pod)
        if pod.node is not None and self.cluster.get(pod.node) is None:
            shutil.rmtree(self.folder.layout.node(pod.node), ignore_errors=True)
        if job is not None:
            before = job.status
            job.pod_ended(pod, now, self.options.back_off_s, self.options.back_off_limit_s)
            if job.status == "failed" and before != "failed":
                self._tell(report.JobFailed(job.name, job.reason, job.failed_code))

    def _tell_end(self, pod: Pod) -> None:
        log = self.folder.layout.log(pod.name)
        code = pod.exit_code or 0
        expected = bool(pod.stopping) or code == 0
        reason = pod.stopping or ("completed" if code == 0 else f"exit code {code}")
        self.record("pod_exit", pod=pod.name, code=code)
        tail = () if expected else report.last_lines(log)
        self._tell(report.PodEnded(pod.name, pod.job, pod.node or "", code, reason, expected, log, tail))

    def _reconcile(self, now: float) -> None:
        attempt = self._controller.attempt
        self._controller.reconcile()
        if self._controller.attempt != attempt:
            self.record("jobset_restart", attempt=self._controller.attempt)
            self._tell(report.JobSetRestarted(self._controller.attempt, self._controller.reason))
        if self._controller.status == "active":
            for job in self._controller.jobs:
                if job.wants_pod(now):
                    self._make_pod(job)
        for pod in self.live:
            if pod.process is None and not pod.ended:
                self._schedule(pod, now)

    def _make_pod(self, job: Job) -> None:
        self.live.append(job.make_pod())

    def _schedule(self, pod: Pod, now: float) -> None:
        node = self.cluster.assign(pod.replicated_job, pod.name)
        if node is None:
            if not pod.told_pending:
                pod.told_pending = True
                self._tell(report.PodPending(pod.name, pod.job, pod.replicated_job))
            return
        try:
            self._kubelet.start(pod, node)
        except OSError as error:
            why = f"it cannot be started on this machine: {error}"
            raise ConfigError(
                [Problem("pod", pod.name, why, "mend that, then start the run again")], "local runner"
            ) from None
        assert pod.process is not None and pod.plan is not None
        self._selector.register(pod.process, selectors.EVENT_READ, pod)
        self._readiness[pod.name] = Readiness(pod, pod.plan.probe, now, self.options.probe_period_s)
        self.record("pod_created", pod=pod.name, node=node.name, job=pod.job, attempt=pod.attempt)
        self._tell(report.PodStarted(pod.name, pod.job, node.name, pod.address or "", pod.attempt, pod.plan.rewrites))

    def _stop(self, reason: str, grace_s: float | None) -> None:
        if self._controller.status == "active":
            self._stopped = reason
            self._controller.abandon(reason)
        if grace_s is not None:
            for pod in self.live:
                pod.stop(reason, grace_s)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1
        self._signal = self._signal or number
        self.stop(f"signal {signal.Signals(number).name}", 0.0 if self._signals > 1 else None)

    def _result(self) -> report.RunEnded:
        restarts = self._controller.attempt
        if self._stopped:
            code = 128 + self._signal if self._signal else 1
            return report.RunEnded("interrupted", self._stopped, code, restarts)
        if self._controller.status == "complete":
            return report.RunEnded("succeeded", self._controller.reason, 0, restarts)
        return report.RunEnded("failed", self._controller.reason, self._controller.failed_code or 1, restarts)

    def _tell(self, happening: report.Happening) -> None:
        for observer in self._observers:
            observer(happening)

    def _close(self) -> None:
        """Closing a control socket kills its pod's tree, so an error in the loop leaves nothing alive either."""
        left = [pod.process for pod in self.live if pod.process is not None]
        for process in left:
            process.close()
        for process in left:
            process.wait(KILL_LIMIT_S)
        self._selector.close()
        self._addresses.close()
        self._log.close()
        self.close_verbs()
