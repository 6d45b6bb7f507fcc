"""How often an urgent save is tried: once more if it failed, never beyond its limit, and not at all if it is there."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.checkpoint import checkpoints
from trainer.checkpoint.checkpoints import Checkpoints


class Saves:
    """Saves that take some seconds each and come to a given end. Time passes in them only."""

    def __init__(self, *ends: tuple[float, bool]) -> None:
        self.committed = 10
        self.now = 0.0
        self.begun: list[int] = []
        self.ends = list(ends)

    def monotonic(self) -> float:
        return self.now

    def begin(self, step: int, _: dict[str, Any]) -> None:
        self.begun.append(step)

    def wait(self, limit_s: float) -> bool:
        if not self.begun:
            return True
        took_s, good = self.ends[len(self.begun) - 1]
        self.now += min(took_s, limit_s)
        if took_s > limit_s:
            return False
        self.committed = self.begun[-1] if good else self.committed
        return True


def _urgently(monkeypatch: pytest.MonkeyPatch, saves: Saves, step: int = 13, limit_s: float = 20.0) -> bool:
    monkeypatch.setattr(checkpoints, "time", saves)
    me: Any = Checkpoints.__new__(Checkpoints)
    me._keep, me._saving = SimpleNamespace(mode="async"), saves
    me._log = SimpleNamespace(span=lambda *_, **__: nullcontext())
    me._begin = lambda step: saves.begin(step, {})
    saved: bool = me.save_urgently(step, limit_s)
    return saved


def test_a_failed_save_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Saves((5.0, False), (5.0, True))
    assert _urgently(monkeypatch, saves)
    assert saves.begun == [13, 13]


def test_after_two_failed_saves_the_commit_before_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Saves((5.0, False), (5.0, False))
    assert not _urgently(monkeypatch, saves)
    assert saves.begun == [13, 13]


def test_no_save_is_tried_again_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Saves((20.0, False))
    assert not _urgently(monkeypatch, saves)
    assert saves.begun == [13]
    late = Saves((21.0, True))
    assert not _urgently(monkeypatch, late)
    assert late.begun == [13] and late.now == 20.0


def test_a_step_that_is_committed_already_is_not_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Saves()
    assert _urgently(monkeypatch, saves, step=10)
    assert not saves.begun
