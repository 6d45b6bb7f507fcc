"""A worker pod: it waits for its control pod, runs the launcher of this node, and ends ranks that nothing watches."""

from __future__ import annotations

import contextlib
import logging
import time
from contextlib import ExitStack
from dataclasses import replace

import psutil

from holdfast import launch
from holdfast.config import names
from holdfast.members import Member, Presence
from holdfast.run_directory import Owner, StaleGeneration
from trainer.child import Child, age_s
from trainer.pod.guard import Guard
from trainer.pod.pod import POLL_S, RECORDS_S, Pod
from trainer.pod.round import Round
from trainer.pod.verdict import Outcome, recorded
from trainer.pod.watch import Watch
from trainer.restart.heartbeat import forget_monitored, is_monitored
from trainer.standby.keeper import Keeper

OWNER_S = 60.0
"""A worker starts only after its control pod is ready, so the owner record is there; this covers a slow file system."""


def worker(pod: Pod) -> Outcome:
    """Run this node's launcher in the generation of the control pod, and in those that follow it in the same pods.
    Raises StaleGeneration."""
    with ExitStack() as stack:
        pod = _with_standby(pod, stack)
        here = Here(pod)
        if here.presence is not None:
            stack.enter_context(here.presence)
        last, limit_s = 0, OWNER_S
        while (owner := _await_owner(pod, last, limit_s)) is not None:
            outcome = _one_generation(pod, owner, here)
            if outcome is not None:
                return outcome
            here.between()
            last = owner.generation
            # Others may still be saving, and the control pod waits for them, and for those that have vanished.
            limit_s = OWNER_S + pod.config.recovery.term_timeout_s + pod.config.recovery.owner_lease_s
    if (found := recorded(pod)) is not None:
        return found
    if pod.departure.due():
        return Outcome(names.EXIT_PREEMPTED, f"{pod.departure.why}, before the control pod was there")
    what = f"began a generation after {last}" if last else "took the run"
    why = f"no control pod of {pod.job}, attempt {pod.jobset_attempt}, {what} within {limit_s:.0f} s"
    return Outcome(names.EXIT_RETRY, why)


class Here:
    """That this pod is there, and what it does, said to the control pod. Silent under torchrun, which has one round."""

    def __init__(self, pod: Pod) -> None:
        self.presence: Presence | None = None
        index = int(pod.environment[names.ENV_GROUP_RANK])
        self._me = Member(pod.job, pod.jobset_attempt, index, pod.name, 0, 0, 0)
        if pod.config.recovery.in_job:
            self.presence = Presence(pod.run, self._me, pod.config.recovery.owner_lease_s / 3)

    def inside(self, generation: int, ranks: int, training: int) -> None:
        """The launcher runs in this generation. ranks: its ranks. training: those with work to lose."""
        if self.presence is not None:
            self.presence.say(replace(self._me, generation=generation, ranks=ranks, training=training))

    def between(self) -> None:
        """No launcher runs; the next generation is waited for."""
        if self.presence is not None:
            self.presence.say(self._me)


def _one_generation(pod: Pod, owner: Owner, here: Here) -> Outcome | None:
    """How the pod ends, or None if another generation follows in it."""

    guard = Guard(pod, owner)
    if not pod.config.recovery.in_job:
        return _one_round(pod, owner, guard)

    def look_after(child: Child) -> str | None:
        _limit_first_section(pod, child)
        guard.look_after(child)
        if pod.standby is not None:
            pod.standby.look_after()
        here.inside(owner.generation, len(child.ranks()), len(pod.departure.training(child)))
        return pod.run.asked_to_move_on(owner.generation)

    forget_monitored(pod.scratch)
    with guard:
        outcome = Watch(pod, owner, look_after, guard.on_line).run(_launcher_argv(pod, owner, guard))
    return guard.verdict(outcome)


def _one_round(pod: Pod, owner: Owner, guard: Guard) -> Outcome | None:
    """How the pod ends, under torchrun: with its launcher, or when those of other nodes have ended."""
    one = Round(pod, owner)

    def look_after(child: Child) -> None:
        guard.look_after(child)
        one.look(child)

    with guard:
        one.began()
        try:
            outcome = Watch(pod, owner, look_after, guard.on_line).run(_launcher_argv(pod, owner, guard))
        finally:
            one.ended()
    if one.broken and outcome is not None and outcome.code == names.EXIT_RETRY:
        return Outcome(names.EXIT_RETRY, one.broken)
    return outcome


def _launcher_argv(pod: Pod, owner: Owner, guard: Guard) -> list[str]:
    return launch.launcher_argv(
        pod.config,
        generation=owner.generation,
        nodes=owner.nodes,
        store=pod.store,
        local_addr=pod.environment[names.ENV_POD_IP],
        group_rank=int(pod.environment[names.ENV_GROUP_RANK]),
        master=pod.environment[names.ENV_MASTER],
        rank_args=_rank_args(pod),
        log_dir=guard.log_dir,
        health_socket=guard.health_socket,
    )


def _rank_args(pod: Pod) -> list[str]:
    return ["--config", str(pod.config_file), "--run-dir", str(pod.run.path)]


def _with_standby(pod: Pod, stack: ExitStack) -> Pod:
    """The pod with its standby, which imports from now on: while the launcher does the same, and meets its peers."""
    keeper = stack.enter_context(Keeper(pod.config, _rank_args(pod), pod.scratch, pod.environment, pod.log))
    return replace(pod, environment=keeper.environment, standby=keeper)


def _await_owner(pod: Pod, after: int, limit_s: float) -> Owner | None:
    """The generation of this pod's own JobSet attempt that comes after `after` and is not already ending; None if none
    comes in time, or the pod goes, or the run has ended meanwhile. Raises StaleGeneration if a newer attempt owns the
    run."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not pod.departure.due():
        try:
            owner = pod.run.owner()
        except OSError as error:
            logging.warning("whose the run is cannot be read yet: %s", error)
            owner = None
        if owner is not None and owner.job == pod.job:
            if owner.jobset_attempt > pod.jobset_attempt:
                raise StaleGeneration(
                    f"this pod is of attempt {pod.jobset_attempt}; attempt {owner.jobset_attempt} owns the run"
                )
            ours = owner.jobset_attempt == pod.jobset_attempt and owner.generation > after
            if ours and not (pod.config.recovery.in_job and pod.run.asked_to_move_on(owner.generation)):
                return owner
        if after and recorded(pod) is not None:
            return None
        time.sleep(RECORDS_S if after else POLL_S)
    return None


def _limit_first_section(pod: Pod, child: Child) -> None:
    """End a rank that has no rank monitor yet and never may: until its first section NVRx does not watch it."""
    limit = pod.config.recovery.first_section_timeout_s
    for process in child.ranks():
        age = age_s(process.pid)
        if age > limit and not is_monitored(pod.scratch, process.pid):
            logging.error(
                "rank process %d has no section after %.0f s (recovery.first_section_timeout_s); killing it",
                process.pid,
                age,
            )
            pod.log.point("first_section_timeout", pid=process.pid, age_s=age)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
