"""When a process has tried often enough: attempts in a row, restarted by layer 1, none of which finished a step."""

from __future__ import annotations

from collections.abc import Callable

IDLE_ATTEMPTS = 5
"""What keeps so many attempts from a step may be in the process itself: it ends, and layer 2 starts another. More than
recovery.same_step_limit by default, which ends the run."""


class Idle:
    """One per process."""

    def __init__(self, finished: Callable[[], int]) -> None:
        """finished: how many steps this process has finished, in all its attempts."""
        self._finished = finished
        self._before = finished()
        self._in_a_row = 0

    def too_many(self) -> bool:
        """Called before each attempt: whether IDLE_ATTEMPTS before it, one after the other, have finished no step."""
        now = self._finished()
        self._in_a_row = 1 if now > self._before else self._in_a_row + 1
        self._before = now
        return self._in_a_row > IDLE_ATTEMPTS
