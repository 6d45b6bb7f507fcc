"""Own time on a GPU: what the device computes, without the host waiting for it."""

from __future__ import annotations

import time

import pytest
import torch

from trainer.stragglers.own_time import PASSES, OwnTime

pytestmark = pytest.mark.gpu
CALLS = 30


def test_the_device_s_time_of_the_blocks_counts_and_not_the_time_in_which_the_stream_waits() -> None:
    device = torch.device("cuda", 0)
    block = torch.nn.Linear(8192, 8192, device=device)
    own = OwnTime([block], device)
    tokens = torch.randn(8192, 8192, device=device)
    for _ in range(2):  # the first makes the events
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with own.step(), own.apart():
            began.record()
            for _ in range(CALLS):
                block(tokens)
            ended.record()
            torch.cuda._sleep(2_000_000_000)  # about a second of cycles, in place of a collective
            torch.cuda.synchronize()
    assert own.last is not None
    computed_s = began.elapsed_time(ended) / 1000
    assert own.last.own_s == pytest.approx(PASSES * computed_s, rel=0.1, abs=0.005)
    assert own.last.step_s > computed_s + 0.3


def test_a_device_that_has_not_come_so_far_is_not_waited_for() -> None:
    device = torch.device("cuda", 0)
    block = torch.nn.Linear(64, 64, device=device)
    own = OwnTime([block], device)
    tokens = torch.randn(64, 64, device=device)
    block(tokens)
    torch.cuda.synchronize()
    start = time.monotonic()
    with own.step(), own.apart():
        torch.cuda._sleep(4_000_000_000)
        block(tokens)
    assert own.last is None and time.monotonic() - start < 0.5
    torch.cuda.synchronize()
