"""A slow rank is named within 50 steps, and nobody else ever is."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from holdfast.goodput.events import EventLog
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks
from trainer.runtime import Identity
from trainer.stragglers.exchange import Stragglers
from trainer.stragglers.judge import WINDOW_STEPS, Judge, Pace, Slow
from trainer.stragglers.own_time import OwnTime

SHARE = 0.2


def judged(own: dict[int, list[float]], step_s: float = 1.0) -> list[tuple[int, int]]:
    """(window, rank) of everyone who is named; own: rank -> own time by window."""
    judge, named = Judge(SHARE), []
    for window in range(len(own[0])):
        paces = {
            rank: Pace(times[window], step_s, f"node{rank // 2}", f"pod{rank // 2}") for rank, times in own.items()
        }
        named += [(window, slow.rank) for slow in judge.window(paces)[0]]
    return named


def test_a_rank_is_named_in_its_third_slow_window_and_once_only() -> None:
    assert judged({0: [0.5] * 20, 1: [0.5] * 4 + [0.8] * 16}) == [(6, 1)]
    assert judged({0: [0.5] * 20, 1: [0.7] * 20}) == [], "0.2 of a step is not more than the limit"


def test_the_slow_one_of_two_nodes_is_named_with_all_its_ranks() -> None:
    assert judged({0: [0.9] * 3, 1: [0.9] * 3, 2: [0.5] * 3, 3: [0.5] * 3}) == [(2, 0), (2, 1)]


def test_a_rank_that_was_slow_in_two_windows_and_then_not_is_not_named() -> None:
    assert judged({0: [0.5] * 9, 1: [0.9, 0.9, 0.5] * 3}) == []


def test_a_rank_that_keeps_up_again_is_taken_back_and_named_again_if_it_falls_behind_again() -> None:
    judge = Judge(SHARE)
    told: list[tuple[int, str, int]] = []
    for window, own in enumerate([0.9] * 4 + [0.5] * 4 + [0.9] * 4):
        new, over = judge.window({0: Pace(0.5, 1.0, "a", "p"), 1: Pace(own, 1.0, "b", "q")})
        told += [(window, "slow", slow.rank) for slow in new] + [(window, "over", slow.rank) for slow in over]
    assert told == [(2, "slow", 1), (6, "over", 1), (10, "slow", 1)]


def test_what_the_slow_rank_costs_is_told_as_factor_and_share_of_the_step() -> None:
    judge = Judge(SHARE)
    paces = {rank: Pace(0.4, 0.8, f"n{rank}", "p") for rank in range(7)} | {7: Pace(0.8, 0.8, "n7", "p7")}
    for _ in range(2):
        judge.window(paces)
    (slow,), _ = judge.window(paces)
    assert slow == Slow(7, Pace(0.8, 0.8, "n7", "p7"), 0.4, 2.0, 0.5)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_noise_of_every_rank_alike_names_nobody(ranks: int) -> None:
    """Own times that vary by a fifth from step to step, and from rank to rank by 3 %."""
    for seed in range(10):
        draw = random.Random(seed)
        usual = [draw.gauss(0.5, 0.015) for _ in range(ranks)]
        steps = [[draw.gauss(one, 0.1) for _ in range(200 * WINDOW_STEPS)] for one in usual]
        windows = {rank: [median(chunk) for chunk in batched(own)] for rank, own in enumerate(steps)}
        assert judged(windows) == [], seed


def batched(own: list[float]) -> list[list[float]]:
    """Windows of steps."""
    return [own[start : start + WINDOW_STEPS] for start in range(0, len(own), WINDOW_STEPS)]


def test_where_ranks_differ_by_themselves_more_than_the_share_only_what_stands_out_is_named() -> None:
    """Uneven work: own times from 0.2 to 0.8 of a step are usual here."""
    usual = {rank: [0.2 + 0.02 * rank] * 6 for rank in range(30)}
    assert judged(usual) == []
    assert judged(usual | {30: [3.0] * 6}, step_s=3.0) == [(2, 30)]


def test_a_rank_without_peers_is_compared_with_nobody() -> None:
    assert judged({0: [0.5, 0.5, 5.0, 5.0, 5.0, 5.0]}) == []


def test_own_time_is_the_host_s_outside_of_what_is_apart_and_that_of_the_blocks_for_both_passes() -> None:
    import torch

    class Block(torch.nn.Module):
        def forward(self, seconds: float) -> float:
            time.sleep(seconds)
            return seconds

    block = Block()
    own = OwnTime([block], torch.device("cpu"))
    block(1.0)  # an evaluation
    for _ in range(2):
        with own.step():
            time.sleep(0.1)
            with own.apart():
                time.sleep(0.4)
                block(0.2)
    assert own.last is not None
    assert 0.1 + 3 * 0.2 < own.last.own_s < 0.1 + 3 * 0.2 + 0.2, own.last
    assert own.last.step_s > 0.7


def test_a_forward_pass_that_an_exception_ends_leaves_nothing_to_the_next_step() -> None:
    import torch

    class Block(torch.nn.Module):
        def forward(self, fails: bool) -> None:
            time.sleep(0.3 if fails else 0)
            if fails:
                raise ValueError

    own = OwnTime([block := Block()], torch.device("cpu"))
    with pytest.raises(ValueError), own.step():
        block(True)
    last = own.last
    assert last is None
    with own.step():
        block(False)
    last = own.last
    assert last is not None and last.own_s < 0.2


SLEEP_S = 0.05
STEPS = 40


def _train(rank: int, world_size: int, cases: Sequence[str]) -> list[list[dict[str, Any]]]:
    """STEPS steps of a sharded model for each case; what this rank has logged about stragglers in each."""
    import torch
    from torch.distributed import PrefixStore
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.distributed_c10d import _get_default_store
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(3)]
    model = torch.nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    own = OwnTime(blocks, torch.device("cpu"))
    found = []
    for case in cases:
        log = EventLog(Path(case), "rank", rank=rank)
        me = Identity(rank, world_size, 0, 1, 0, f"pod{rank}", f"node{rank}", "")
        stragglers = Stragglers(configured(), me, log, PrefixStore(case, _get_default_store()))
        _steps(case if rank == world_size - 1 else "", model, own, stragglers)
        events = [json.loads(line) for path in Path(case).iterdir() for line in path.read_text().splitlines()]
        found.append([event for event in events if event["name"].startswith("straggler")])
    return found


def _steps(case: str, model: Any, own: OwnTime, stragglers: Stragglers) -> None:
    """case: what is wrong with this rank."""
    import torch

    from trainer import optimizer as optimizers

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    # Inside of a block: behind the wait for its parameters.
    hook = model[1][1].register_forward_pre_hook(lambda *_: time.sleep(SLEEP_S if case == "forward" else 0))
    data = torch.randn(8, 64)
    for step in range(3, 3 + STEPS):
        with own.step():
            _sleep(case == "data")
            with own.apart():
                loss = model(data).square().mean()
            if case == "pauses" and step in (7, 8, 22):  # a debugger, garbage, a host that is busy for a moment
                time.sleep(0.2)
            with own.apart():
                loss.backward()
                clipped = optimizers.clip(model, 1.0, loss.detach())
            _sleep(case == "update")
            optimizers.update(optimizer, clipped)
            optimizer.zero_grad(set_to_none=True)
            with own.apart():
                clipped.read()
            time.sleep(0.005)  # no step is so short that the moods of a busy machine are a fifth of it
        stragglers.after_step(step, own.last)
        if case == "save" and step % 10 == 5:
            time.sleep(0.2)  # between two steps
    hook.remove()


def _sleep(really: bool) -> None:
    if really:
        time.sleep(SLEEP_S)


def test_the_rank_that_sleeps_in_every_step_is_named_within_50_steps_wherever_it_sleeps() -> None:
    rank_0, rank_1 = run_ranks(_train, 2, ["data", "forward", "update"], timeout_s=100)
    assert rank_1 == [[], [], []], "rank 0 alone compares"
    for (event,) in rank_0:
        assert (event["name"], event["rank"], event["node"], event["pod"]) == ("straggler", 1, "node1", "pod1")
        assert event["step"] <= 3 + STEPS and event["steps"] == 3 * WINDOW_STEPS
        assert event["own_s"] > SLEEP_S and event["own_s"] > 0.99 * event["factor"] * event["median_s"]
        assert event["factor"] > 1.2 and 0.2 < event["share"] <= 1


def test_ranks_that_keep_up_are_not_named_whatever_pauses_they_have() -> None:
    assert run_ranks(_train, 2, ["nothing", "pauses", "save"], timeout_s=100) == [[[], [], []]] * 2
