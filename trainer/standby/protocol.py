"""What a door and the template say to each other. Standard library only, and little of it: a door starts with it.

One connection per rank, a Unix socket that keeps messages apart. The door sends ASK with five descriptors: the request
(JSON, in memory), the read end of its leash, and its stdin, stdout and stderr. The template answers {"pid": N} with a
pidfd of the rank, or {"refused": why}; when the rank has ended it sends {"code": N}, negative for a signal.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

ENV_SOCKET = "HOLDFAST_STANDBY_SOCKET"
"""Path of the template's socket. The supervisor sets it for template, launcher and doors."""
ENV_WAIT_S = "HOLDFAST_STANDBY_WAIT_S"
"""recovery.standby_wait_s, for the doors."""
ENV_PARENT = "HOLDFAST_STANDBY_PARENT"
"""Process id of the supervisor that has started the template."""
ASK = b"rank"
DESCRIPTORS = 5
MESSAGE_BYTES = 4096


class Request(NamedTuple):
    """What a door was started with: all that a new interpreter would have got from it."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    cpus: list[int]
    """CPUs that it may run on."""


def write_request(request: Request) -> int:
    """A descriptor of memory that holds the request."""
    memory = os.memfd_create("standby-request")
    with open(memory, "w", encoding="utf-8", closefd=False) as file:
        json.dump(request._asdict(), file)
    return memory


def read_request(memory: int) -> Request:
    """The request in the descriptor, which stays open. Raises ValueError, TypeError or KeyError if it is none."""
    with open(memory, encoding="utf-8", closefd=False) as file:
        file.seek(0)
        return Request(**json.load(file))


def pack(**fields: Any) -> bytes:
    """An answer. A reason is cut so that it is always one message."""
    return json.dumps(
        {key: value[:1000] if isinstance(value, str) else value for key, value in fields.items()}
    ).encode()


def unpack(message: bytes) -> dict[str, Any]:
    """The answer, or an empty one if the other end is gone."""
    return dict(json.loads(message)) if message else {}
