"""One launcher of one generation: started, watched together with the records and the signals, and stopped."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from holdfast import launch
from holdfast.config import names
from holdfast.run_directory import Owner, StaleGeneration
from trainer import departure
from trainer.child import Child
from trainer.departure import Request
from trainer.pod.pod import POLL_S, RECORDS_S, Pod
from trainer.pod.verdict import Outcome, of_ended_launcher, recorded

END_S = 10.0
"""After COMPLETE: how long launchers may take to end by themselves."""
NVRX_EVENT = re.compile(r"- Cycle: (\d+) Event: (\w+)")


class Watch:
    """`run` starts the launcher of `owner`'s generation and returns how the pod ends after it.

    look_after: called every RECORDS_S while the launcher runs. It returns None, or why this generation is over although
    the pod stays.
    """

    def __init__(
        self,
        pod: Pod,
        owner: Owner,
        look_after: Callable[[Child], str | None],
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._pod = pod
        self._owner = owner
        self._look_after = look_after
        self._tell_line = on_line
        self._next_look = 0.0
        self._unread_since: float | None = None
        """Since when the owner record cannot be read; None while it can."""
        self._over: str | None = None
        """Why the next generation follows in this pod; None as long as none does."""

    def run(self, argv: list[str]) -> Outcome | None:
        """Watch the launcher until it, a record or a signal ends it. None: the pod stays, for the next generation.

        Raises StaleGeneration if another JobSet attempt, or another job, owns the run.
        """
        pod, owner = self._pod, self._owner
        environment = {
            **pod.environment,
            **launch.rank_environment(pod.config, generation=owner.generation, token=owner.token),
        }
        departure.forget(pod.scratch)
        logging.info("starting %s", " ".join(argv))
        pod.log.point("launcher_start", generation=owner.generation, nodes=owner.nodes)
        child = Child(argv, environment, self._on_line, pod.standby)
        ready = pod.scratch / names.READY_FILE
        ready.touch()
        try:
            if not self._ends(child):
                self._stop(child)
        finally:
            ready.unlink(missing_ok=True)
            pod.log.point("launcher_end", code=child.code())
            child.kill_all()
        if child.code() is not None and pod.departure.why is None:
            self._note(self._look_after(child))  # it may have ended because the generation did
        self._require_ours()
        if self._over is None:
            return of_ended_launcher(pod, child.code())
        logging.info("generation %d is over in this pod: %s", owner.generation, self._over)
        return recorded(pod) or (
            None if pod.departure.why is None else Outcome(names.EXIT_PREEMPTED, pod.departure.why)
        )

    def _ends(self, child: Child) -> bool:
        """True when the child has ended; False when it must be stopped."""
        pod = self._pod
        while child.code() is None:
            if pod.departure.due():
                return False
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + RECORDS_S
                child.reap()
                self._note(self._look_after(child))
                if pod.run.complete() is not None:
                    return child.wait(END_S)
                if pod.run.terminal() is not None:
                    return False
                self._require_ours()
                pod.departure.look_for_request(self._owner.generation)
                if self._over is not None:
                    return False
            time.sleep(POLL_S)
        return True

    def _note(self, over: str | None) -> None:
        self._over = self._over or over

    def _require_ours(self) -> None:
        """Raises StaleGeneration, unless the run has only gone on to the next generation in the same pods."""
        if self._over is not None:
            return
        try:
            self._pod.run.require_generation(self._owner.generation)
        except StaleGeneration:
            newer = self._pod.newer_here(self._owner.generation)
            if newer is None:
                raise
            self._over = f"generation {newer.generation} with {newer.nodes} nodes follows"
        except OSError as error:
            self._tolerate(error)
        else:
            self._unread_since = None

    def _tolerate(self, error: OSError) -> None:
        """A file system that hiccups is no reason to end a pod; after the owner's lease nothing is sure any more."""
        now = time.monotonic()
        if self._unread_since is None:
            self._unread_since = now
            logging.warning("whether this generation still owns the run cannot be read: %s", error)
        if now - self._unread_since > self._pod.config.recovery.owner_lease_s:
            raise error

    def _stop(self, child: Child) -> None:
        """If the pod goes, let ranks save first. Then SIGTERM, and after the time that the ranks have, SIGKILL.

        If the pod stays, its ranks save too, and the launcher, which has nothing to lose, is killed after that.
        """
        pod, going = self._pod, self._pod.departure
        term_s = pod.config.recovery.term_timeout_s
        if self._over is not None and going.why is None:
            if not pod.is_control:
                going.let_ranks_save(child, Request(self._over, time.monotonic() + term_s))
            return
        limit = min(term_s + 2, pod.config.cluster.grace_period_s - 1)
        if going.why is not None and pod.is_control:
            going.let_workers_leave(child, self._owner.generation, lambda: self._note(self._look_after(child)))
        elif going.why is not None and going.let_ranks_save(child, going.request):
            return
        child.terminate()
        if not child.wait(limit):
            logging.error("the launcher did not end within %d s of SIGTERM; killing it", limit)

    def _on_line(self, line: str) -> None:
        self._tell_line(line)
        match = NVRX_EVENT.search(line)
        if match:
            self._pod.log.point("launcher_event", event=match.group(2), cycle=int(match.group(1)))
