"""Urgent saves: ranks agree on one step without a collective, save there or not at all, and nobody hangs."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config, same
from trainer.departure import Request, mark_of
from trainer.urgent import GONE, STEP, Agreement, Leaving, Urgent

RANKS, STEPS = 3, 4
REQUEST = Request("drained", until=float("inf"))


# --- the agreement, in every order that the collectives of a step allow ---


class Paused(Exception):
    """A rank has done its one operation."""


class OneMore:
    """A store for one rank that repeats what it answered before, does one operation more, and then stops the rank. So
    any interleaving can be played without threads. value: the one key, None if it is not set."""

    def __init__(self, value: bytes | None, answers: tuple[Any, ...]) -> None:
        self.value = value
        self.answers = list(answers)
        self._asked = 0
        self._moved = False

    def check(self, keys: list[str]) -> bool:
        assert keys == [STEP]
        return bool(self._operation(lambda: self.value is not None))

    def get(self, key: str) -> bytes:
        return bytes(self._operation(lambda: self.value))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        def write() -> bytes | None:
            if self.value is None and expected == "":
                self.value = desired.encode()
            return self.value

        return bytes(self._operation(write))

    def _operation(self, act: Any) -> Any:
        self._asked += 1
        if self._asked <= len(self.answers):
            return self.answers[self._asked - 1]
        if self._moved:
            raise Paused
        self._moved = True
        self.answers.append(act())
        return self.answers[-1]


Rank = tuple[str, int, tuple[Any, ...]]
"""`in` a step, `looking` after it with these answers so far, `left` after it, or `complete`."""


def every_end(asked_at: tuple[int | None, ...], agreement: type[Agreement] = Agreement) -> set[tuple[Rank, ...]]:
    """All final states of ranks that are asked to leave at the end of these steps, over all interleavings."""
    start: tuple[bytes | None, tuple[Rank, ...]] = (None, (("in", 1, ()),) * RANKS)
    ends, seen, open_states = set(), {start}, [start]
    while open_states:
        value, ranks = open_states.pop()
        following = [_moved(value, ranks, rank, asked_at[rank], agreement) for rank in range(RANKS)]
        moved = [state for state in following if state is not None]
        if not moved:
            ends.add(ranks)
        for state in moved:
            if state not in seen:
                seen.add(state)
                open_states.append(state)
    return ends


def _moved(
    value: bytes | None, ranks: tuple[Rank, ...], rank: int, asked_at: int | None, agreement: type[Agreement]
) -> tuple[bytes | None, tuple[Rank, ...]] | None:
    """The state after one move of one rank; None if it cannot move."""
    kind, step, answers = ranks[rank]
    if kind == "in":
        if any(there < step for _, there, _ in ranks):
            return None  # its collectives wait for a rank that has not entered this step
        new: Rank = ("looking", step, ())
    elif kind == "looking":
        store = OneMore(value, answers)
        request = REQUEST if asked_at is not None and step >= asked_at else None
        try:
            agreed = agreement(store, rank).look(step, STEPS, request)  # type: ignore[arg-type]
        except Paused:
            new = ("looking", step, tuple(store.answers))
        else:
            new = ("left", step, ()) if agreed else ("complete", step, ()) if step == STEPS else ("in", step + 1, ())
        value = store.value
    else:
        return None
    return value, (*ranks[:rank], new, *ranks[rank + 1 :])


@pytest.mark.parametrize("asked_at", list(itertools.product((None, 1, 2, 3), repeat=RANKS)))
def test_in_every_interleaving_all_ranks_leave_after_the_same_step(asked_at: tuple[int | None, ...]) -> None:
    """It is the one after the first request; a request so late that it would be the last step changes nothing."""
    first = min([step for step in asked_at if step is not None], default=STEPS)
    expected: Rank = ("left", first + 1, ()) if first + 1 < STEPS else ("complete", STEPS, ())
    assert every_end(asked_at) == {(expected,) * RANKS}


def test_the_search_finds_the_error_of_ranks_that_leave_at_once() -> None:
    class AtOnce(Agreement):
        def look(self, step: int, last: int, request: Request | None) -> Any:
            super().look(step - 1, last, request)
            return super().look(step, last, None)

    assert len(every_end((1, None, None), AtOnce)) > 1


def _threads_agree(seed: int) -> list[int]:
    store, entered = dist.HashStore(), threading.Barrier(RANKS)
    asked_at = [random.Random(seed).choice((2, 3, 4, None)) for _ in range(RANKS)]
    asked_at[seed % RANKS] = 3
    left = [0] * RANKS

    def rank(number: int) -> None:
        chance = random.Random(seed * RANKS + number)
        agreement = Agreement(store, number)
        for step in range(1, 20):
            entered.wait(10)  # what a collective does: nobody ends a step before all have entered it
            time.sleep(chance.random() * 0.002)
            when = asked_at[number]
            if agreement.look(step, 20, REQUEST if when is not None and step >= when else None):
                left[number] = step
                return

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return left


def test_threads_with_a_real_store_agree_too() -> None:
    for seed in range(40):
        left = _threads_agree(seed)
        assert len(set(left)) == 1 and left[0] in (3, 4)


# --- real ranks ---


def _ask_to_leave(scratch: Path, limit_s: float) -> None:
    request = asdict(Request("stopped by signal SIGTERM", time.monotonic() + limit_s))
    (scratch / "leave.tmp").write_text(json.dumps(request))
    (scratch / "leave.tmp").rename(scratch / names.LEAVE_FILE)


def _train_until_asked(rank: int, world: int, folder: str, limit_s: float, stuck_writer: bool) -> dict[str, Any]:
    """Step 5 is committed; then rank 1 is asked to leave at some moment, and no regular save comes near."""
    scratch = Path(folder) / f"scratch-{rank}"
    scratch.mkdir()
    os.environ[names.ENV_SCRATCH] = str(scratch)
    sets = ["checkpoint.interval_steps=1000", "checkpoint.persist_timeout_s=90"]
    sets += [
        "recovery.checkpoint_section_timeout_s=100",
        f"recovery.term_timeout_s={limit_s:g}",
        "cluster.grace_period_s=120",
    ]
    settings = config(*sets, "training.steps=1000", world_size=world)
    session = Session(f"{folder}/run", settings, rank, world)
    session.checkpoints.restore()
    session.steps(1, 5)
    assert session.checkpoints.save_urgently(5, 90)  # the writer may still be importing torch
    dist.barrier()
    if stuck_writer and rank == 0:
        os.kill(session.writer.pid or 0, signal.SIGSTOP)
    identity = SimpleNamespace(rank=rank, world_size=world)
    survivors: Any = SimpleNamespace(identity=identity, log=session.log, config=settings)
    asked_at = time.monotonic() + 0.2 + random.random() * 0.2
    if rank == 1:
        threading.Timer(asked_at - time.monotonic(), _ask_to_leave, (scratch, limit_s)).start()
    try:
        with Urgent(survivors, session.checkpoints) as urgent:
            assert mark_of(scratch, os.getpid()).exists()
            for step in range(6, 1000):
                session.step(step)
                time.sleep(0.03)
                urgent.after_step(step)
    except Leaving as leaving:
        left_s = time.monotonic() - asked_at
        message = str(leaving)
        leaving.together()
    at_the_end = session.whole()
    committed = session.committed()
    from trainer.checkpoint.compare import read_whole

    newest = read_whole(session.run.checkpoints / names.step_folder(committed[-1]))
    session.close()
    return {
        "step": step,
        "left_s": left_s,
        "message": message,
        "committed": committed,
        "same": same(at_the_end, newest),
        "events": session.events("urgent_save"),
        "mark": mark_of(scratch, os.getpid()).exists(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.timeout(240)
def test_one_rank_is_asked_and_all_commit_the_same_step_and_leave(tmp_path: Path, world: int) -> None:
    ranks = run_ranks(_train_until_asked, world, str(tmp_path), 60.0, False, timeout_s=200)
    (step,) = {rank["step"] for rank in ranks}
    assert step > 5
    for rank in ranks:
        assert rank["committed"] == [5, step] and rank["same"]
        assert rank["mark"], "the supervisor waits for a rank until its process has ended"
        (event,) = rank["events"]
        assert (event["step"], event["committed"], event["asked_by"]) == (step, True, 1)
        assert f"step {step} is committed" in rank["message"] and "rank 1 asked for it" in rank["message"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_save_that_cannot_be_finished_in_time_leaves_the_commit_before_it(tmp_path: Path) -> None:
    limit_s = 6.0
    ranks = run_ranks(_train_until_asked, 2, str(tmp_path), limit_s, True, timeout_s=200)
    (step,) = {rank["step"] for rank in ranks}
    for rank in ranks:
        assert rank["committed"] == [5] and not rank["same"]
        assert rank["left_s"] < limit_s
        (event,) = rank["events"]
        assert (event["step"], event["committed"]) == (step, False)
        assert f"step {step} is lost" in rank["message"] and "The commit before it stands" in rank["message"]


class SilentStore:
    """A store whose server is gone."""

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("Broken pipe")

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("Broken pipe")


def test_without_its_store_a_rank_trains_on_until_the_launcher_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(names.ENV_SCRATCH, str(tmp_path))
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", SilentStore)
    _ask_to_leave(tmp_path, 60)
    identity = SimpleNamespace(rank=0, world_size=2)
    survivors: Any = SimpleNamespace(identity=identity, log=None, config=config())
    checkpoints: Any = None
    with Urgent(survivors, checkpoints) as urgent:
        urgent.after_step(1)
        urgent.after_step(2)
    assert caplog.text.count("no urgent save can be agreed on") == 1
    assert not mark_of(tmp_path, os.getpid()).exists()


def test_ranks_leave_together_but_wait_for_a_missing_one_only_briefly() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    alone = Leaving("message", store, 2)
    since = time.monotonic()
    alone.together()
    assert 0.9 < time.monotonic() - since < 5
    since = time.monotonic()
    Leaving("message", store, 2).together()
    assert time.monotonic() - since < 0.5
    assert store.add(GONE, 0) == 2
    silent: Any = SilentStore()
    Leaving("message", silent, 2).together()
