"""Tensors out of what torch.save wrote, without a copy and without parsing the same description again."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.checkpoint.read_memory import PINNED_BYTES, SMALLEST_BYTES, ReadMemory
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
    first = memory.take(100)
    first[:3] = b"abc"
    assert bytes(memory.take(SMALLEST_BYTES)[:3]) == b"abc"
    others: list[bytes] = []
    thread = threading.Thread(target=lambda: others.append(bytes(memory.take(3))))
    thread.start()
    thread.join()
    assert others == [bytes(3)]


def test_memory_that_cannot_be_pinned_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, bool]] = []

    def empty(size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        asked.append((size, pin_memory))
        raise RuntimeError("out of pinned memory")

    monkeypatch.setattr(torch, "empty", empty)
    memory = ReadMemory(pinned=True)
    larger = PINNED_BYTES + 1
    assert len(memory.take(larger)) == larger  # too much to keep: it is not asked for
    assert not asked
    assert len(ReadMemory(pinned=False).take(5)) == 5
    assert not asked
    fresh = ReadMemory(pinned=True)
    assert len(fresh.take(5)) == 5
    assert len(fresh.take(SMALLEST_BYTES + 1)) == SMALLEST_BYTES + 1
    assert asked == [(SMALLEST_BYTES, True)]  # once is enough
    assert [record.levelname for record in caplog.records] == ["WARNING"]
