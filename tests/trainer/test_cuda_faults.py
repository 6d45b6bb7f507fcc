"""Faults of a GPU: memory that runs out can be used again, a sticky error cannot be cured in the process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import pytest

from holdfast.config.faults import Fault
from trainer.faults import rank_acts

pytestmark = pytest.mark.gpu


def _code_of(function: Callable[[], None]) -> int | None:
    """Exit code of a new process: what it does to its CUDA context stays there."""
    process = multiprocessing.get_context("spawn").Process(target=function)
    process.start()
    process.join(90)
    if process.is_alive():
        process.kill()
        process.join(5)
    return process.exitcode


def _out_of_memory() -> None:
    import torch

    try:
        rank_acts.exhaust_gpu(Fault(kind="cuda_oom", step=1))
    except torch.OutOfMemoryError:
        assert torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20
        os._exit(3)


def test_gpu_memory_runs_out_by_cudas_word_and_is_there_again_afterwards() -> None:
    assert _code_of(_out_of_memory) == 3


def _illegal_address() -> None:
    import torch

    try:
        rank_acts.read_illegal_address(Fault(kind="cuda_error", step=1))
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error
        try:
            torch.ones(1, device="cuda").sum().item()
        except RuntimeError:
            os._exit(3)


def test_an_illegal_address_is_an_error_that_stays_until_the_process_ends() -> None:
    assert _code_of(_illegal_address) == 3
