"""The loop around an arm: blocks of steps without a save, and between them a save with all steps until its write is
over. It only writes down what it saw; bench/checkpoint_results.py makes numbers of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench.arms.arm import Arm
from bench.arms.workload import Workload

Report = Callable[..., None]
SETTLING = 2
"""Steps after a pause that do not count: a GPU that has idled runs them at another clock."""


@dataclass(frozen=True)
class Interval:
    """From the moment at which the host has the numbers of one step to that of the next; a save that is due comes
    first. Seconds. The device works behind the host: what a save makes an update wait for shows in the interval after.

    call: in the save call. wait: before the update was launched. gradients: forward and backward, on the device.
    durable_at: when all ranks' parts were seen to be durable, counted from the start. done: all work of the save is
    over.
    """

    seconds: float
    call: float
    wait: float
    gradients: float
    durable_at: float | None
    done: bool


class SaveTooSlow(Exception):
    """A save took longer than the bench waits."""


class Loop:
    """Runs steps and times them. The end of one interval is the start of the next."""

    def __init__(self, work: Workload, arm: Arm) -> None:
        self._work = work
        self._arm = arm
        self._stamp = time.perf_counter()

    def settle(self) -> None:
        """Steps that are not counted, after a pause."""
        for _ in range(SETTLING):
            self._work.step(self._arm.before_update, self._arm.between)
        self._stamp = time.perf_counter()

    def interval(self, save: int | None = None) -> Interval:
        """Save if one is due, then do a step."""
        start = self._stamp
        if save is not None:
            self._arm.save(save)
        else:
            self._arm.after_step()
        called = time.perf_counter() - start
        durable, done = self._work.everyone(self._arm.durable(), self._arm.done())
        durable_at = time.perf_counter() - start if durable else None
        gradients, wait = self._work.step(self._arm.before_update, self._arm.between)
        self._stamp = time.perf_counter()
        return Interval(self._stamp - start, called if save is not None else 0.0, wait, gradients, durable_at, done)

    def block(self) -> list[Interval]:
        """Steps while no save is in flight."""
        self._work.barrier()
        self.settle()
        return [self.interval() for _ in range(self._work.spec.block)]

    def save(self, index: int) -> list[Interval]:
        """A save and all steps until it is over, that one included in whose beginning this was seen."""
        seen = [self.interval(index)]
        while not seen[-1].done:
            if sum(one.seconds for one in seen) > self._work.spec.limit_s:
                raise SaveTooSlow(f"save {index} was not over after {self._work.spec.limit_s} s")
            seen.append(self.interval())
        return seen


def measure(work: Workload, arm: Arm, report: Report, extra_first: bool) -> dict[str, Any]:
    """All saves of an arm; reports each at once. Returns what is known at the end. Collective."""
    count = work.spec.saves + extra_first
    loop = Loop(work, arm)
    report("lead_in", steps=[loop.interval().seconds for _ in range(work.spec.lead_in)])
    before, probe = loop.block(), {}
    for index in range(count):
        if index == count - 1:
            probe = work.probe()
        seen = loop.save(index)
        work.barrier()
        if work.rank == 0 and index < count - 1:
            arm.forget(index)
        after = loop.block()
        report("save", index=index, **_raw(before, seen, after))
        before = after
    (right,) = work.everyone(arm.as_saved(count - 1, probe))
    work.barrier()
    if work.rank == 0:
        arm.forget(count - 1)
    return {"content_is_right": right}


def _raw(before: list[Interval], seen: list[Interval], after: list[Interval]) -> dict[str, Any]:
    passed, durable = 0.0, None
    for one in seen:
        if durable is None and one.durable_at is not None:
            durable = passed + one.durable_at
        passed += one.seconds
    return {
        "call_s": seen[0].call,
        "wait_s": seen[0].wait,
        "durable_s": durable,
        "window": [one.seconds for one in seen],
        "before": [one.seconds for one in before],
        "after": [one.seconds for one in after],
        "gradients": [one.gradients for one in (*before, *after)],
        "first": asdict(seen[0]),
    }
