"""The staged copy on a CPU: each tensor once, a few shared segments, an error where the memory is not there."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer import own_mounts
from trainer.checkpoint import segments as segments_module
from trainer.checkpoint.segments import StagingFailed
from trainer.checkpoint.stage import ALIGNMENT, Stage, lay_out

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=12)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


def _live(shapes: list[list[int]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {f"model.{index}": torch.full(shape, index % 100).to(dtype) for index, shape in enumerate(shapes)}


@given(shapes=SHAPES, dtype=DTYPES, limit=st.integers(1, 4000))
@settings(max_examples=150, deadline=None)
def test_tensors_lie_apart_aligned_and_whole_in_segments_of_bounded_size(
    shapes: list[list[int]], dtype: torch.dtype, limit: int
) -> None:
    live = _live(shapes, dtype)
    layout, locals_ = lay_out(live, limit)
    places = sorted(
        (slot.segment, slot.offset, slot.offset + local.nbytes)
        for slot, local in zip(layout.slots, locals_, strict=True)
    )
    for (segment, _, end), (next_segment, start, _) in pairwise(places):
        assert next_segment > segment or start >= end
    assert all(offset % ALIGNMENT == 0 and end <= layout.sizes[segment] for segment, offset, end in places)
    largest = max(local.nbytes for local in locals_)
    assert max(layout.sizes) <= max(limit, largest, ALIGNMENT)


def test_a_copy_holds_every_tensor_and_later_changes_do_not_reach_it() -> None:
    """case-10."""
    live = _live([[3, 5], [], [0, 4], [700]], torch.float32)
    live["model.tied"] = live["model.0"]
    stage = Stage()
    stage.bind(live)
    stage.copy()
    for tensor in live.values():
        tensor.add_(1000)
    segments = stage.segments()
    for index in range(4):
        staged = stage.layout.slot(f"model.{index}").of(segments)
        assert torch.equal(staged, live[f"model.{index}"] - (2000 if index == 0 else 1000))
        assert staged.untyped_storage().nbytes() == staged.nbytes, "torch.save writes the whole storage"
    assert stage.layout.names["model.tied"] == stage.layout.names["model.0"]


def test_the_memory_is_shared_and_kept_from_one_attempt_to_the_next() -> None:
    stage = Stage()
    stage.bind(_live([[1000, 30]], torch.float32))
    first = stage.segments()
    assert all(segment.is_shared() for segment in first)
    stage.forget()
    stage.bind(_live([[1000, 30]], torch.float32))
    assert [segment.data_ptr() for segment in stage.segments()] == [segment.data_ptr() for segment in first]
    stage.bind(_live([[1000, 31]], torch.float32))
    assert stage.bytes > first[0].nbytes


def test_memory_that_is_not_there_is_an_error_with_the_sizes_and_not_a_sigbus(monkeypatch: pytest.MonkeyPatch) -> None:
    free = os.statvfs(segments_module.SHARED_MEMORY)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*free[:4], 0, *free[5:]]))
    stage = Stage()
    stage.bind(_live([[100]], torch.float32))
    with pytest.raises(StagingFailed, match=r"/dev/shm: 0 bytes are free and the staged copy of this rank takes 512"):
        stage.copy()


@own_mounts.needed
def test_a_full_dev_shm_is_an_error_in_the_background_and_not_a_sigbus(tmp_path: Path) -> None:
    """The free space can go between the look and the allocation: so the pages are faulted in by a call that fails."""
    code = (
        "import torch; from trainer.checkpoint import segments, stage; segments._require_room = lambda size, of: None\n"
        "s = stage.Stage(); s.bind({'model.w': torch.zeros(8 << 20)})\n"
        "try:\n    s.copy()\nexcept segments.StagingFailed as error:\n    print('said:', error)\n"
    )
    mounted = f'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec {sys.executable} -c "$0"'
    printed = own_mounts.run(["sh", "-c", mounted, code], {"TMPDIR": str(tmp_path)}, timeout_s=60)
    assert printed.startswith("said: 33,554,432 of 33,554,432 bytes of host memory cannot be had:"), printed
    assert "No space left on device" in printed
