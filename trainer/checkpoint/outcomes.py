"""What the writer process does with a request: do it, and leave what came of it in a small piece of shared memory. A
file could not be written when the disk is full.

`report` and `settle` are called there; `place` and `switch` are the two ends of the memory, used on both sides.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch

from trainer.checkpoint.segments import Handle

logger = logging.getLogger(__name__)

OUTCOME_BYTES = 1 << 13
OUTCOMES = 8
"""Results that are kept, so that one that nobody has looked at yet survives the next request."""
SWITCH_BYTES = 8
"""Behind the results: the number of the request that is called off, 0 for none. One aligned word, set at once."""
IO_LEVEL = 7
"""Lowest level of the best-effort I/O class. The idle class would starve on a busy disk until the save times out."""

_channel: list[torch.Tensor] = []
"""In the writer process: where results go."""
_request: list[int] = []
"""In the writer process: the number of the request that it is doing."""


def settle(outcome: Handle) -> None:
    """First request: where results go, and how important the process is to the storage."""
    _channel[:] = [outcome.open()]
    try:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, IO_LEVEL)
    except (OSError, psutil.Error) as error:
        logger.warning("the writer keeps its I/O priority: %s", error)


def called_off() -> bool:
    """In the writer process: whether the trainer has called off what it is doing."""
    return int(switch(_channel[0])[0]) == _request[0]


def report(number: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call the function and leave its result, or why it failed. The process lives on: to start one takes seconds."""
    outcome: dict[str, Any] = {"request": number, "process": os.getpid()}
    _request[:] = [number]
    try:
        outcome["result"] = function(*arguments)
    except Exception as error:  # noqa: BLE001  whatever it is, the trainer has to know
        outcome |= {"error": str(error)[: OUTCOME_BYTES // 8], "kind": type(error).__name__}
    content = json.dumps(outcome).encode()
    memory = place(_channel[0], number)
    memory[:] = 0
    memory[: len(content)] = bytearray(content)


def place(memory: torch.Tensor, number: int) -> Any:
    """Where the result of a request lies."""
    start = number % OUTCOMES * OUTCOME_BYTES
    return memory.numpy()[start : start + OUTCOME_BYTES]


def switch(memory: torch.Tensor) -> Any:
    """The number of the request that is called off, as an array of one."""
    return memory.numpy()[-SWITCH_BYTES:].view(np.int64)
