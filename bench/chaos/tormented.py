"""One run from its first attempt to its last: killed, judged, resumed, compared."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from bench.chaos.attempt import RANKS, Attempt, Place
from bench.chaos.plan import ALL, RANK0, RANK1, WRITER, Plan, Sight, phase_of
from bench.chaos.processes import Child, Zygote
from bench.chaos.records import Kill
from bench.chaos.verdicts import Verdicts
from bench.chaos.watch import Watch
from holdfast.config import RunConfig
from holdfast.run_directory import RunDirectory

HANG_LIMIT_S = 60.0
"""No commit, restore or end for so long is a hang. A start with two slow cores takes 2 s, a replaced writer 5 s."""
AIM_LIMIT_S = 3.0
"""A phase that does not come within this time is not waited for any longer."""
MAX_CRASHES = 3
"""Attempts in a row that end by themselves, unsuccessfully, before the run is given up."""
PAUSE_S = 0.002


class GivenUp(Exception):
    """The run cannot be brought to its end. The message says why."""


@dataclass
class Pace:
    """How long things take here, learned on the way: the times in which instants are drawn, in seconds."""

    cycles: deque[float] = field(default_factory=lambda: deque([0.4], maxlen=40))
    starts: deque[float] = field(default_factory=lambda: deque([2.0], maxlen=10))

    @property
    def cycle_s(self) -> float:
        """From one commit to the next."""
        return statistics.median(self.cycles)

    @property
    def start_s(self) -> float:
        """From the start of an attempt to its first commit."""
        return statistics.median(self.starts)


class Tormented:
    """A run under fire. `strike` takes the next plan; `finish` lets the run come to its end in peace."""

    def __init__(
        self, zygote: Zygote, config: RunConfig, place: Place, pace: Pace, report: Callable[[Kill], None]
    ) -> None:
        """report: gets each kill once it is judged."""
        self._zygote = zygote
        self._config = config
        self._place = place
        self._pace = pace
        self.run = RunDirectory(place.run_dir)
        self.watch = Watch(self.run.checkpoints)
        self.verdicts = Verdicts(self.watch, report)
        self.seeds: list[int] = []
        self._attempt: Attempt | None = None
        self._starts = 0
        self._cycle = 0
        self._generation = 0
        self._found = Sight(())
        """What the present attempt found when it began."""
        self._commits_before = 0
        self._crashes = 0
        self._in_job = False

    def strike(self, plan: Plan) -> bool:
        """Carry out one kill. False if the run was complete before its instant came; the plan is still open then."""
        since = time.monotonic()
        attempt = self._going()
        if attempt is None:
            return False
        kill = Kill(plan.seed, plan.victim, plan.aim, "", 0)
        reached = self._until_instant(plan, attempt)
        if reached is None:
            self._hung(kill, since, "the instant of the kill was waited for")
            return True
        if not reached:
            return False
        kill.phase = self._phase(attempt)
        if plan.victim in (RANK0, RANK1, ALL):
            self._kill_ranks(plan, attempt, kill, since)
        elif not self._kill_writers(plan, attempt, kill, since):
            return False
        self.seeds.append(plan.seed)
        return True

    def finish(self) -> None:
        """Until the run is complete, in as many attempts as that takes."""
        while (attempt := self._going()) is not None:
            deadline = time.monotonic() + HANG_LIMIT_S
            seen = 0
            while not self._ended(attempt):
                self.verdicts.of_restore(attempt, self._found.newest)
                if self.watch.highest != seen:
                    seen, deadline = self.watch.highest, time.monotonic() + HANG_LIMIT_S
                if time.monotonic() > deadline:
                    self._hung(None, deadline, "the end of the run was waited for")
                    break
                time.sleep(PAUSE_S)
        self.verdicts.close()

    def stop(self) -> None:
        """End whatever runs."""
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None

    # --- attempts ---

    def _going(self) -> Attempt | None:
        """The attempt that runs, begun if there is none; None once the run is complete."""
        if self._attempt is not None and self._ended(self._attempt):
            return self._going()
        if self._attempt is None:
            if self.run.complete() is not None:
                return None
            terminal = self.run.terminal()
            if terminal is not None or self._crashes >= MAX_CRASHES:
                raise GivenUp(terminal.reason if terminal else f"{MAX_CRASHES} attempts in a row ended by themselves")
            self._attempt = self._begin()
        return self._attempt

    def _begin(self) -> Attempt:
        if self._in_job and self._generation:
            self._cycle += 1
        else:
            owner = self.run.take(
                nodes=RANKS, job="chaos", jobset_attempt=self._starts, pod=f"chaos-{self._starts}-control", lease_s=1.0
            )
            self._starts += 1
            self._generation, self._cycle = owner.generation, 0
        self._found = Sight.of(self.run.checkpoints)
        self._commits_before = len(self.watch.commits)
        return Attempt(self._zygote, self._config, self._place, self._generation, self._cycle)

    def _ended(self, attempt: Attempt) -> bool:
        """Whether the attempt is over; then it is judged and forgotten. One that failed by itself has crashed."""
        codes = attempt.codes()
        if all(code is None for code in codes):
            return False
        if any(code is None for code in codes) and not any(codes):
            return False  # the other one is about to leave, too
        if all(code == 0 for code in codes):
            self.verdicts.of_restore(attempt, self._found.newest)
            self._crashes = 0
            self.watch.note(attempt.end())
        else:
            self.watch.note(
                [f"attempt {attempt} ended by itself with {codes}; log in {self._place.logs}", *attempt.end()]
            )
            self._crashes += 1
        self._attempt = None
        return True

    def _hung(self, kill: Kill | None, since: float, where: str) -> None:
        attempt = self._attempt
        assert attempt is not None
        attempt.stacks()
        why = [f"hang of attempt {attempt} while {where}; stacks in {self._place.logs}", *attempt.end()]
        self._attempt = None
        self._crashes += 1
        if kill is None:
            self.watch.note(why)
            return
        kill.hang, kill.why, kill.phase = True, why, self._phase(attempt)
        self.verdicts.give(kill, since)

    # --- the instant ---

    def _until_instant(self, plan: Plan, attempt: Attempt) -> bool | None:
        """Wait for the plan's instant. False: the run ended before it; None: it hangs."""
        starts = plan.aim == "start-up" and len(self.watch.commits) == self._commits_before
        if starts:
            return self._pass(attempt, attempt.since + plan.fraction * self._pace.start_s)
        saves = 0 if plan.phase == "restore" and plan.aim == "phase" else plan.saves
        target = len(self.watch.commits) + saves
        deadline = time.monotonic() + HANG_LIMIT_S
        while len(self.watch.commits) < target or (plan.victim not in (RANK0, RANK1, ALL) and not self._ready(attempt)):
            if self._ended(attempt):
                return False
            if time.monotonic() > deadline:
                return None
            self.verdicts.of_restore(attempt, self._found.newest)
            time.sleep(PAUSE_S)
        if plan.aim == "phase":
            deadline = time.monotonic() + AIM_LIMIT_S
            while self._phase(attempt) != plan.phase and time.monotonic() < deadline:
                if self._ended(attempt):
                    return False
                time.sleep(PAUSE_S / 4)
            return self._pass(attempt, time.monotonic() + plan.fraction * 0.004)
        return self._pass(attempt, time.monotonic() + plan.fraction * self._pace.cycle_s)

    def _ready(self, attempt: Attempt) -> bool:
        """Whether every rank has a writer and trains."""
        return bool(attempt.restored()) and all(attempt.writers(rank) for rank in range(RANKS))

    def _pass(self, attempt: Attempt, until: float) -> bool:
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
        return not self._ended(attempt)

    def _phase(self, attempt: Attempt) -> str:
        return phase_of(
            Sight.of(self.run.checkpoints),
            attempt.events(0),
            attempt=str(attempt),
            before=self._found.unfinished,
            keep=self._config.checkpoint.keep_last,
            steps=self._config.training.steps,
        )

    # --- the kill ---

    def _kill_ranks(self, plan: Plan, attempt: Attempt, kill: Kill, since: float) -> None:
        """Kill one rank, or every process of the run; end the rest, as a launcher does; leave the verdict open."""
        known = [child for rank in range(RANKS) for child in attempt.below(rank)]
        if plan.victim == ALL:
            # In a pod, semaphores in /dev/shm end with it; here only multiprocessing's trackers can remove them.
            deaths: list[Callable[[], None]] = [child.kill for child in known if child.role != "tracker"]
            deaths += [rank.kill for rank in attempt.ranks]
            random.Random(plan.order).shuffle(deaths)
        else:
            deaths = [attempt.ranks[int(plan.victim == RANK1)].kill]
        for death in deaths:
            death()
        kill.step = self.watch.look_now()
        time.sleep(plan.unnoticed_s if plan.victim != ALL else 0.0)
        kill.why += attempt.end(known)
        self._learn(attempt)
        self.verdicts.of_restore(attempt, self._found.newest)
        self._attempt = None
        self._crashes = 0
        self._in_job = plan.in_job and plan.victim != ALL
        self.watch.look_now()
        self.verdicts.await_restore(kill, since)

    def _kill_writers(self, plan: Plan, attempt: Attempt, kill: Kill, since: float) -> bool:
        """Kill writers only: training goes on, and a later save commits. False if there was none to kill."""
        ranks = [plan.writer] if plan.victim == WRITER else list(range(RANKS))
        victims: list[Child] = [child for rank in ranks for child in attempt.writers(rank)]
        if not victims:
            return False
        for victim in victims:
            victim.kill()
        kill.step = self.watch.look_now()
        deadline = time.monotonic() + HANG_LIMIT_S
        while self.watch.highest <= kill.step and kill.step < self._config.training.steps:
            if attempt.codes() != [None] * RANKS and self.run.complete() is None:
                kill.why.append(f"training ended with {attempt.codes()} after only writers had been killed")
                break
            if time.monotonic() > deadline:
                self._hung(kill, since, "a commit after the death of a writer was waited for")
                return True
            time.sleep(PAUSE_S)
        else:
            kill.resumed_at = self.watch.highest
            kill.why += _unaccounted(attempt, kill.step)
        self.verdicts.of_restore(attempt, self._found.newest)
        kill.why += attempt.gone(victims)
        self.verdicts.give(kill, since)
        return True

    def _learn(self, attempt: Attempt) -> None:
        times = [at for at, _ in self.watch.commits[self._commits_before :]]
        if times:
            self._pace.starts.append(times[0] - attempt.since)
        self._pace.cycles.extend(later - earlier for earlier, later in pairwise(times))


def _unaccounted(attempt: Attempt, since: int) -> list[str]:
    """Saves staged after step `since` of which nobody says what became of them, but for the newest."""
    events = [event for rank in range(RANKS) for event in attempt.events(rank)]
    staged = sorted({event["step"] for event in events if event["name"] == "stage" and event["step"] > since})
    told = {event["step"] for event in events if event["name"] in ("commit", "save_failed")}
    return [f"the save of step {step} neither failed nor was committed" for step in staged[:-1] if step not in told]
