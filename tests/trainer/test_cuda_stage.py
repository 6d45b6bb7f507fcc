"""Staging on a GPU: what is staged is what was, whatever the optimizer does next."""

from __future__ import annotations

import pytest
import torch

from trainer.checkpoint.stage import SEGMENT_BYTES, Stage

pytestmark = pytest.mark.gpu

NUMBERS = 1 << 28
"""1 GiB of float32: its copy to the host takes 19 ms on an H200, an update in place less than 1 ms."""


def _torn(waits: bool) -> int:
    """How many of ten saves hold another value than the one at their time."""
    live = {"model.weight": torch.zeros(NUMBERS, device="cuda")}
    stage = Stage()
    stage.bind(live)
    torn = 0
    for value in range(10):
        live["model.weight"].fill_(value)
        stage.copy()
        stage.launch()
        if waits:
            stage.wait()
        live["model.weight"].add_(1000)
        torch.cuda.synchronize()
        staged = stage.layout.slot("model.weight").of(stage.segments())
        torn += not bool((staged == value).all())
    stage.release()
    return torn


def test_the_next_update_waits_for_the_copy_and_nothing_is_torn() -> None:
    """case-10."""
    assert _torn(waits=True) == 0


def test_without_the_wait_the_copy_would_be_torn() -> None:
    """That the test above can fail."""
    assert _torn(waits=False) > 0


def test_segments_are_pinned_once_and_kept_for_the_next_attempt() -> None:
    live = {f"model.{index}": torch.full((1 << 24,), float(index), device="cuda") for index in range(20)}
    stage = Stage()
    stage.bind(live)
    before = stage.segments()
    assert len(before) == -(-20 * (1 << 26) // SEGMENT_BYTES)
    assert all(segment.is_pinned() and segment.is_shared() for segment in before)
    stage.forget()
    stage.bind({name: tensor.clone() for name, tensor in live.items()})
    assert [segment.data_ptr() for segment in stage.segments()] == [segment.data_ptr() for segment in before]
    stage.release()
    stage.bind({name: tensor.clone() for name, tensor in live.items()})
    assert all(segment.is_pinned() for segment in stage.segments())
    stage.release()


def test_what_was_read_into_the_segments_gets_back_to_the_gpu() -> None:
    live = {"model.a": torch.zeros(1000, 33, device="cuda"), "optimizer.state.a.step": torch.tensor(0.0, device="cuda")}
    stage = Stage()
    stage.bind(live)
    for slot in stage.layout.slots:
        slot.of(stage.segments()).fill_(7.0)
    stage.put_back()
    assert all(bool((tensor == 7.0).all()) for tensor in live.values())
    stage.release()
