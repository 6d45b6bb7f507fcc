"""What a worker's supervisor does around one launcher for the stop rules: it keeps the ranks' output, records how ranks
die, says whether this node is still fit, and ends a launcher whose ranks nothing would watch.
"""

from __future__ import annotations

from contextlib import ExitStack

from holdfast.config import names
from holdfast.run_directory import Owner
from trainer import preflight
from trainer.child import Child
from trainer.pod.pod import Pod
from trainer.pod.unwatched import Unwatched
from trainer.pod.verdict import Outcome
from trainer.restart.deaths import Deaths
from trainer.restart.node_health import NodeHealth
from trainer.restart.rank_logs import RankLogs


class Guard:
    """One per worker and generation. Use as a context manager around the launcher."""

    def __init__(self, pod: Pod, owner: Owner) -> None:
        self._stack = ExitStack()
        recovery = pod.config.recovery
        self._deaths = Deaths(pod.run, pod.scratch, owner.generation, recovery.same_step_limit)
        self._logs = RankLogs(pod.config, pod.run, pod.scratch, owner.generation, pod.name)
        self._unwatched = Unwatched(pod.scratch)
        self._health: NodeHealth | None = None
        if recovery.in_job:  # torchrun asks nobody, and restarts nothing: a new pod begins with its own preflight
            self._health = NodeHealth(
                pod.scratch / names.HEALTH_SOCKET,
                lambda: preflight.findings(pod.config, pod.run.path),
                recovery.spare_check_interval_s,
            )
        self.log_dir = str(self._logs.folder)
        self.health_socket = None if self._health is None else str(pod.scratch / names.HEALTH_SOCKET)

    def __enter__(self) -> Guard:
        self._stack.callback(self._deaths.close)
        self._stack.enter_context(self._logs)
        if self._health is not None:
            self._stack.enter_context(self._health)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def on_line(self, line: str) -> None:
        """A line of the launcher's output."""
        self._deaths.on_line(line)

    def look_after(self, child: Child) -> None:
        """Call often while the launcher runs, and once when it has ended."""
        if child.code() is not None:
            self._deaths.settle()  # the record may say how this pod ends
        self._unwatched.look_after(child)
        if self._health is not None:
            self._health.look_after(child)

    def verdict(self, outcome: Outcome | None) -> Outcome | None:
        """The pod's end, with what the guard has ended the launcher for as the reason where that is it."""
        if self._unwatched.why and outcome is not None and outcome.code == names.EXIT_RETRY:
            return Outcome(names.EXIT_RETRY, self._unwatched.why)
        if self._health is None or not self._health.unfit or (outcome and outcome.code != names.EXIT_RETRY):
            return outcome
        return Outcome(names.EXIT_RETRY, f"this node is unfit: {self._health.unfit}")
