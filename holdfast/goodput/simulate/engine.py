"""The simulation: from one fault to the next. Steps are not simulated; how many fit between two events is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from holdfast.config.failure_rates import FAULT_KINDS
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.phases import RESTART
from holdfast.goodput.simulate.commits import Commits
from holdfast.goodput.simulate.draws import DAY_S, Faults, GivenFault, Strike, draw, given
from holdfast.goodput.simulate.pace import Pace
from holdfast.goodput.simulate.pool import Pool
from holdfast.goodput.simulate.record import Record
from holdfast.goodput.simulate.result import TRAIN, JobSpan, Simulation
from holdfast.goodput.simulate.settings import GROW, PERSON, Durations, Fleet, Policy, check, cure_of, layer_of

MOST_INTERRUPTIONS = 1_000_000
"""A simulation with more ends with an error: the job fails faster than it can recover."""


def simulate(
    durations: Durations,
    fleet: Fleet,
    policy: Policy,
    *,
    seed: int = 0,
    days: float | None = None,
    steps: int | None = None,
    faults: Iterable[GivenFault] | None = None,
) -> Simulation:
    """One run. It ends after `days` of wall time or with step `steps`, whatever comes first; one must be given.

    faults: these and no others, instead of those drawn from the fleet's rates. The same arguments give the same run.
    Raises ConfigError for what cannot be simulated, and for a job that has failed a million times without an end.
    """
    check(durations, fleet, policy)
    if (
        (days is None and steps is None)
        or not (days is None or 0 < days < math.inf)
        or not (steps is None or steps > 0)
    ):
        why = "a simulation needs an end, a finite one above 0"
        raise ConfigError([Problem("days, steps", (days, steps), why, "give days, steps or both")], "simulation")
    random = np.random.default_rng([seed, 0])
    source = Faults(draw(fleet, random)) if faults is None else Faults(*given(faults, fleet.nodes + fleet.spares))
    job = _Job(durations, fleet, policy, source, seed)
    job.run(math.inf if days is None else days * DAY_S, steps)
    return Simulation(job.now, job.complete, fleet.nodes, tuple(job.spans), job.record.interruptions())


class _Job:
    """The state of one simulated run."""

    def __init__(self, durations: Durations, fleet: Fleet, policy: Policy, faults: Faults, seed: int) -> None:
        self._durations, self._fleet, self._policy = durations, fleet, policy
        self._faults = faults
        # Streams of their own: faults must not move because a node took longer to repair or a tier was lost.
        self._pool = Pool(fleet, np.random.default_rng([seed, 1]))
        self._commits = Commits(durations, policy, np.random.default_rng([seed, 2]))
        self._end, self._steps = math.inf, 0
        self._paces: dict[int, Pace] = {}
        self._step = 0
        self._attempt = (1, 0, 0)
        self.now = 0.0
        self.complete = False
        self.spans: list[JobSpan] = []
        self.record = Record()

    def run(self, end: float, steps: int | None) -> None:
        """Until `end` (seconds) or the end of step `steps`."""
        self._end, self._steps = end, steps or 0
        self._queue()
        struck = self._spend(self._durations.init_s, "init")
        while self.now < self._end and not self.complete:
            struck = self._recover(struck) if struck else self._train()
            if len(self.record) > MOST_INTERRUPTIONS:
                why = f"it failed {MOST_INTERRUPTIONS:,} times and came to step {self._step}"
                fix = "lower the failure rate or the restart times"
                raise ConfigError([Problem("simulation", self.now, why, fix)], "simulation")

    # --- time passes ---

    def _spend(self, seconds: float, what: str, first: int = 0) -> Strike | None:
        """So much time passes, or less if a fault strikes or the simulated time ends. Returns the fault."""
        until = min(self.now + seconds, self._end)
        struck = self._struck_before(until)
        self._span(struck.at if struck else until, what, first)
        return struck

    def _span(self, until: float, what: str, first: int = 0) -> None:
        if until > self.now:
            self.spans.append(JobSpan(self.now, until, what, self._attempt, first))
            self.now = until

    def _struck_before(self, until: float) -> Strike | None:
        """The next fault of the job itself before a time. Spares that fail on the way only leave the pool."""
        while self._faults.next_at() < until:
            strike = self._faults.pop()
            self._pool.take_returned(strike.at)
            spare = strike.node - self._fleet.nodes
            if spare >= 0:
                self._pool.break_spare(strike.at, spare)
            elif self.now <= strike.at and (strike.node < 0 or strike.node < self._pool.running):
                return strike
        self._pool.take_returned(until)
        return None

    def _queue(self, before_s: float = 0.0) -> None:
        """Nothing runs, so nothing of the job can fail; before_s: until somebody has asked for a run at all."""
        self._span(min(self.now + before_s + self._durations.queue_s, self._end), "queue")

    # --- training ---

    def _train(self) -> Strike | None:
        """Until a fault, the end, or (elastic) the return of a node. Returns the fault."""
        self.record.overcome(self.now)
        pace, start = self._pace(), self.now
        goal = pace.time_of(self._step, self._steps - self._step) if self._steps else math.inf
        until = min(start + goal, self._end)
        due = self._faults.next_step()
        at_step = math.inf if due is None else start + pace.time_of(self._step, due - 1 - self._step)
        by_step = at_step < until
        until = min(until, at_step)
        returns = start if self._pool.spares else self._pool.next_return()
        grows = self._pool.missing > 0 and returns < until
        if grows:
            until = self._step_end(pace, max(returns, start), until)
        struck = self._struck_before(until)
        if struck is None:
            self._progress(pace, until, struck=False, whole=until < self._end or start + goal <= self._end)
            if by_step and not grows:
                return self._faults.pop_step(self.now)
            return self._at_rest(grows)
        if FAULT_KINDS[struck.kind].announced:
            end = self._step_end(pace, struck.at, until)
            self._progress(pace, end, struck=False, whole=True)
            return replace(struck, at=self.now)
        self._progress(pace, struck.at, struck=True, whole=False)
        return struck

    def _at_rest(self, grows: bool) -> Strike | None:
        """Training has come to the end of a step that it was to come to."""
        over = self._steps > 0 and self._step >= self._steps
        if self.now >= self._end or not (grows or over):
            return None
        struck = self._urgent_save()
        if struck or self.now >= self._end:
            return struck
        if over:
            self.complete = True
            self._span(min(self.now + self._durations.shutdown_s, self._end), "other")
            return None
        self._redo(IN_JOB)
        return self._restart(IN_JOB, self._durations.cures[GROW, IN_JOB].restart_s)

    def _step_end(self, pace: Pace, at: float, most: float) -> float:
        """End of the step that is under way at a time, at most `most`."""
        start = self.now
        steps = pace.steps_by(self._step, at - start)
        return min(start + pace.time_of(self._step, steps + 1), most)

    def _progress(self, pace: Pace, until: float, *, struck: bool, whole: bool) -> None:
        """Train until a time; whole: it is the end of a step, up to rounding."""
        seconds = until - self.now
        # Times of steps are sums of floats: half a step on, the count of finished ones is beyond doubt.
        steps = pace.steps_by(self._step, seconds + (0.5 * self._durations.step_s if whole else 0.0))
        if self._steps:
            steps = min(steps, self._steps - self._step)
        if seconds > 0:
            span = JobSpan(self.now, until, TRAIN, self._attempt, self._step, steps, pace, struck)
            self.spans.append(span)
            for tier, step in pace.committed(self._step, steps, seconds):
                self._commits.add(tier, step)
        self._step += steps
        self.now = until

    def _pace(self) -> Pace:
        running = self._pool.running
        if running not in self._paces:
            self._paces[running] = Pace(self._durations, self._policy, self._fleet.nodes / running)
        return self._paces[running]

    def _urgent_save(self) -> Strike | None:
        """Save to the shared tier and wait for the commit, as before a planned end. Returns a fault that was faster."""
        shared = self._commits.shared
        if shared is None or self._commits.has(shared, self._step):
            return None
        save = self._durations.tiers[shared].save
        struck = self._spend(save.blocked_s + save.background_s, "checkpoint_wait")
        if struck is None and self.now < self._end:
            self._commits.add(shared, self._step)
        return struck

    # --- recovery ---

    def _recover(self, struck: Strike) -> Strike | None:
        """From a fault to the start of training, or to the next fault. Returns that one."""
        kind = FAULT_KINDS[struck.kind]
        layer = layer_of(struck.kind, self._durations, self._policy)
        self.record.struck(struck, layer)
        if kind.announced and self.spans and self.spans[-1].what == TRAIN and (again := self._urgent_save()):
            return again
        if kind.takes_node:
            self._pool.break_running(self.now)
        self._commits.lose(struck.kind)
        detection_s = 0.0 if kind.announced else cure_of(struck.kind, layer, self._durations).detection_s
        if again := self._spend(detection_s, "detection"):
            return again
        layer = self._find_nodes(struck.kind, layer)
        self.record.noticed(self.now, layer)
        seconds = cure_of(struck.kind, layer, self._durations).restart_s
        if layer == PERSON:
            return self._by_person(seconds)
        self._redo(layer)
        return self._wait_for_nodes() or self._restart(layer, seconds)

    def _find_nodes(self, kind: str, layer: str) -> str:
        """Let spares take the empty places. Returns the layer that goes on: without a spare, a higher one."""
        self._pool.take_returned(self.now)
        self._pool.fill()
        enough = self._pool.running >= self._needed
        higher = NODE in self._policy.layers and (kind, NODE) in self._durations.cures
        return layer if enough or not higher else NODE

    @property
    def _needed(self) -> int:
        """Nodes without which the job cannot run."""
        return self._policy.min_nodes if self._policy.elastic else self._fleet.nodes

    def _wait_for_nodes(self) -> Strike | None:
        """Until there are as many nodes as the job needs."""
        while self._pool.running < self._needed and self.now < self._end:
            struck = self._spend(self._pool.next_return() - self.now, "node_replacement")
            if struck:
                return struck
            self._pool.fill()
        return None

    def _restart(self, layer: str, seconds: float) -> Strike | None:
        """New ranks by a layer that has its nodes, then the newest checkpoint that is left."""
        self._pool.take_returned(self.now)
        self._pool.fill()
        return self._spend(seconds, RESTART[layer]) or self._restore()

    def _by_person(self, seconds: float) -> Strike | None:
        """Nobody is there for a while; then a new run begins where the old one ended."""
        self._redo(NODE)
        self._queue(seconds)
        self._struck_before(self.now)
        self._pool.fill()
        return self._wait_for_nodes() or self._spend(self._durations.init_s, "init") or self._restore()

    def _restore(self) -> Strike | None:
        """Load the newest checkpoint; of two tiers with the same step, from the faster one."""
        step, tier = self._commits.go_back()
        self.record.restored(self._step - step, tier.name if tier else None)
        self._step = step
        return self._spend(tier.restore_s, "restore", step) if tier else None

    def _redo(self, layer: str) -> None:
        """From here on it is the attempt that this layer makes."""
        generation, cycle, restart = self._attempt
        following = {IN_PROCESS: (generation, cycle, restart + 1), IN_JOB: (generation, cycle + 1, 0)}
        self._attempt = following.get(layer, (generation + 1, 0, 0))
