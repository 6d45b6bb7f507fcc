"""The loop around an arm of the bench: which steps belong to a save."""

from __future__ import annotations

from typing import Any

import pytest

from bench.arms.measure import Loop, SaveTooSlow
from bench.checkpoint import CPU_SIZES
from bench.checkpoint_spec import Spec


class FakeWork:
    """A workload whose steps take no time, and that agrees with itself."""

    def __init__(self, limit_s: float = 10.0) -> None:
        self.spec = Spec(
            arm="", method="", run="", raw="", target="", cuda=False, world=1, threads=1, saves=1, limit_s=limit_s,
            block=2, **CPU_SIZES,
        )  # fmt: skip

    def step(self, before_update: Any, between: Any) -> tuple[float, float]:
        between()
        before_update()
        return 0.0, 0.0

    def everyone(self, *flags: bool) -> list[bool]:
        return list(flags)

    def barrier(self) -> None:
        """Alone."""


class FakeArm:
    """Durable after two looks, done after three."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def save(self, index: int) -> None:
        self.calls.append(f"save {index}")

    def after_step(self) -> None:
        self.calls.append("after step")

    def between(self) -> None:
        pass

    def before_update(self) -> None:
        self.calls.append("before update")

    def durable(self) -> bool:
        return self.calls.count("after step") >= 2

    def done(self) -> bool:
        return self.calls.count("after step") >= 3


def test_a_save_ends_with_the_step_that_begins_when_all_its_work_is_seen_to_be_over() -> None:
    arm: Any = FakeArm()
    work: Any = FakeWork()
    seen = Loop(work, arm).save(7)
    assert [one.done for one in seen] == [False, False, False, True]
    assert [one.durable_at is not None for one in seen] == [False, False, True, True]
    assert arm.calls == ["save 7", "before update", *["after step", "before update"] * 3]


def test_a_save_that_never_ends_ends_the_arm() -> None:
    class Endless(FakeArm):
        def done(self) -> bool:
            return False

    arm: Any = Endless()
    work: Any = FakeWork(limit_s=0.01)
    with pytest.raises(SaveTooSlow, match=r"save 0 was not over after 0\.01 s"):
        Loop(work, arm).save(0)
