"""Ranks that die while a checkpoint is being written."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import RunFiles, until
from tests.e2e.pods import Pods
from trainer.checkpoint.persist import DELAY_VARIABLE


class Onlooker:
    """Looks at a checkpoint folder all the time, as somebody would who resumes from it at that moment."""

    def __init__(self, run: RunFiles) -> None:
        self._run = run
        self._over = threading.Event()
        self.looks = 0
        self.loads = 0
        self.complaints: list[str] = []

    @contextmanager
    def looking(self) -> Iterator[None]:
        """For the time of the body, from the first commit on."""
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(30)

    def _look(self) -> None:
        from trainer.checkpoint.compare import read_whole

        latest = self._run.run_dir / names.CHECKPOINTS / names.LATEST
        next_load = 0.0
        while not self._over.is_set():
            named = latest.read_text() if latest.exists() else ""
            committed = self._run.committed()
            if named and not (latest.parent / named / names.COMMITTED).exists():
                self.complaints.append(f"LATEST names {named}, which has no marker; committed: {committed}")
            if self.looks and not committed:
                self.complaints.append("no committed checkpoint is left")
            if committed:
                self.looks += 1
                if damage := self._run.damage(committed[-1]):
                    self.complaints.append(f"step {committed[-1]}: {damage} differ from what was committed")
                if time.monotonic() > next_load:
                    next_load = time.monotonic() + 0.5
                    self.loads += bool(read_whole(latest.parent / names.step_folder(committed[-1])))
            time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # so it is: one process loads
@pytest.mark.timeout(240)
def test_at_every_moment_a_whole_checkpoint_is_there_although_ranks_die_in_the_middle_of_saves(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """case-02: one rank is killed while its writer has begun nothing yet, the other while files are half-written."""
    sets = ("training.min_step_s=0.2", "checkpoint.interval_steps=3", "checkpoint.keep_last=2")
    with Pods(tmp_path / "out", *sets, environment={DELAY_VARIABLE: "0.7"}) as pods:
        onlooker = Onlooker(pods)
        with onlooker.looking():
            control, first, second = pods.start()
            until("a save after a commit", lambda: pods.committed() and _staged(pods) > pods.committed()[-1])
            os.kill(second.rank(), signal.SIGKILL)
            killed_at = pods.committed()[-1]
            until("training goes on", lambda: pods.committed()[-1] > killed_at)
            torn = until(
                "files of a save", lambda: list(pods.run_dir.glob("checkpoints/*.partial/*.distcp")), pause_s=0.002
            )
            os.kill(first.rank(), signal.SIGKILL)
            assert [pod.wait() for pod in (control, first, second)] == [0, 0, 0]
    assert onlooker.complaints == []
    assert onlooker.looks > 100 and onlooker.loads > 10
    assert not torn[0].parent.exists()
    restarts = {(event.process.cycle, event.whole("step")) for event in pods.events("restore")}
    assert len(restarts) == 2 and min(step or 0 for _, step in restarts) >= 3
    assert_same_weights(pods)


def _staged(run: RunFiles) -> int:
    return max((event.whole("step") or 0 for event in run.events("stage")), default=0)
