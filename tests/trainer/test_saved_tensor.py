"""Tensors out of what torch.save wrote, without a copy and without parsing the same description again."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.checkpoint import reader
from trainer.checkpoint.read_memory import PIECE_BYTES, ReadMemory
from trainer.checkpoint.saved_tensor import SavedTensors


def saved(tensor: torch.Tensor) -> memoryview:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return memoryview(bytearray(stream.getvalue()))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Grows by one with each description that is parsed."""
    calls: list[torch.Tensor] = []
    really = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        calls.append(really(*args, **kwargs))
        return calls[-1]

    monkeypatch.setattr(torch, "load", load)
    return calls


def test_only_the_first_tensor_of_a_kind_is_parsed(parsed: list[torch.Tensor]) -> None:
    source, tensors = SavedTensors(), [torch.randn(40, 30) for _ in range(5)]
    for tensor in tensors:
        assert torch.equal(source.tensor_in(saved(tensor)), tensor)
    assert len(parsed) == 1


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "4 x 6": lambda: torch.arange(24.0).view(4, 6),
    "6 x 4": lambda: torch.arange(24.0).view(6, 4),
    "transposed": lambda: torch.arange(24.0).view(6, 4).t(),
    "int32": lambda: torch.arange(24, dtype=torch.int32).view(4, 6),
    "a view of more": lambda: torch.arange(48.0).view(8, 6)[4:],
    "a scalar": lambda: torch.tensor(7.0),
    "empty": lambda: torch.empty(0, 6),
    "empty otherwise": lambda: torch.empty(3, 0, dtype=torch.int64),
}


def test_tensors_of_different_kinds_are_told_apart_even_where_they_are_as_long(parsed: list[torch.Tensor]) -> None:
    source = SavedTensors()
    for _ in range(2):
        for kind, make in KINDS.items():
            found, tensor = source.tensor_in(saved(make())), make()
            assert torch.equal(found, tensor), kind
            assert (found.dtype, found.stride()) == (tensor.dtype, tensor.stride()), kind
    assert len(parsed) == len(KINDS)


def test_the_values_stay_where_they_are() -> None:
    source, content = SavedTensors(), saved(torch.zeros(9, 9))
    first = source.tensor_in(content)
    first.fill_(3.0)
    assert torch.equal(source.tensor_in(content), torch.full((9, 9), 3.0))


def test_a_thread_keeps_its_memory_and_shares_it_with_no_other() -> None:
    memory = ReadMemory(pinned=False)
    for size in (100, PIECE_BYTES + 100):
        memory.take(size)[:3] = b"abc"
        assert bytes(memory.take(size - 50)[:3]) == b"abc"
        others: list[bytes] = []
        thread = threading.Thread(target=lambda size=size, found=others: found.append(bytes(memory.take(size)[:3])))
        thread.start()
        thread.join()
        assert others == [bytes(3)]


class Pinning:
    """Stands in for torch.empty where no GPU is."""

    def __init__(self, works: bool) -> None:
        self.works = works
        self.asked: list[tuple[int, bool]] = []
        self.really = torch.empty

    def __call__(self, size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        self.asked.append((size, pin_memory))
        if not self.works:
            raise RuntimeError("out of pinned memory")
        return self.really(size, dtype=dtype)


def test_pieces_of_one_size_are_pinned_and_larger_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", pinning := Pinning(works=True))
    memory = ReadMemory(pinned=True)
    for size in (5, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES + 2, 7):
        assert len(memory.take(size)) == size
    assert pinning.asked == [(PIECE_BYTES, True)]
    memory.take(3)[:] = b"abc"
    gc.collect()
    assert bytes(memory.take(3)) == b"abc"


def test_memory_that_cannot_be_pinned_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "empty", pinning := Pinning(works=False))
    memory = ReadMemory(pinned=True)
    assert len(memory.take(5)) == 5
    thread = threading.Thread(target=lambda: memory.take(5))
    thread.start()
    thread.join()
    assert pinning.asked == [(PIECE_BYTES, True)]  # once is enough, for all threads
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("on_a_gpu", [True, False])
def test_only_what_goes_to_a_gpu_is_read_into_pinned_memory(monkeypatch: pytest.MonkeyPatch, on_a_gpu: bool) -> None:
    monkeypatch.setattr(torch, "empty", pinning := Pinning(works=True))
    target = SimpleNamespace(is_cuda=on_a_gpu)
    run = SimpleNamespace(file=SimpleNamespace(name="f"), first=0, last=0, items=(SimpleNamespace(target=target),))
    reader._Load(Path("."), 4096, 1, [run])._memory.take(1)  # type: ignore[list-item]
    assert bool(pinning.asked) is on_a_gpu
