"""The neighbour copy: one part per TCP connection, from one writer process to another. No torch.distributed.

sender: one JSON line {token, part}   receiver: {"go": true} or {"error": why}
sender: the part's bytes              receiver: {"done": true} once it is durable, or {"error": why}

Each operation has a time limit and so has the whole; a receiver takes no more bytes than the header promised, no more
than it was told to expect, and leaves nothing behind of a stream that ends early.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.local.files import Damaged, PartWriter, lacks_room
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part

logger = logging.getLogger(__name__)

HEADER_BYTES = 1 << 22
"""Longest line. A part of 840 GB has 2 MB of checksums."""
RECEIVE_BYTES = 1 << 23
ACCEPT_S = 0.5
"""How often the receiver looks whether it is to end."""


class ExchangeFailed(Exception):
    """A part was not copied. Says why; training goes on."""


@dataclass(frozen=True)
class Limits:
    """What a connection may take. idle_s: one operation. total_s: all of it. max_bytes: one part.

    at_once: connections that are served side by side; one more is refused.
    """

    max_bytes: int
    idle_s: float = 30.0
    total_s: float = 900.0
    at_once: int = 2


class _Channel:
    """A socket with a time limit for each operation and for all of them."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._socket = connection
        self._idle_s = limits.idle_s
        self._deadline = time.monotonic() + limits.total_s
        self._rest = b""
        self._limit_s: float | None = None

    def send(self, data: Any) -> None:
        self._arm(self._idle_s)
        self._socket.sendall(data)

    def send_line(self, record: dict[str, Any]) -> None:
        self.send(json.dumps(record).encode() + b"\n")

    def fill(self, view: memoryview) -> int:
        """Receive as many bytes as fit; fewer only at the end of the stream."""
        filled = min(len(view), len(self._rest))
        view[:filled], self._rest = self._rest[:filled], self._rest[filled:]
        while filled < len(view):
            self._arm(self._idle_s)
            got = self._socket.recv_into(view[filled:])
            if not got:
                break
            filled += got
        return filled

    def receive_line(self, patient: bool = False) -> dict[str, Any]:
        """One JSON object. patient: the peer may take all the time that is left. Raises ExchangeFailed."""
        while b"\n" not in self._rest:
            self._arm(float("inf") if patient else self._idle_s)
            more = self._socket.recv(1 << 16)
            if not more:
                raise ExchangeFailed("the connection was closed")
            self._rest += more
            if len(self._rest) > HEADER_BYTES:
                raise ExchangeFailed(f"a line of more than {HEADER_BYTES} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ExchangeFailed("what came is not a JSON object")
        return record

    def _arm(self, limit_s: float) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time limit of the whole copy is over")
        limit_s = min(limit_s, left)
        if limit_s != self._limit_s:  # each change is a system call
            self._socket.settimeout(limit_s)
            self._limit_s = limit_s


# --- the side that sends ---


def send_part(address: str, token: str, part: Part, source: FlatBytes, limits: Limits) -> None:
    """Copy a part to the receiver at `address` (host:port). Returns when it is durable there; raises ExchangeFailed."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), limits.idle_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = _Channel(connection, limits)
            channel.send_line({"token": token, "part": part.record()})
            _require(channel.receive_line(), "go")
            for block in source.blocks(part.block_bytes):
                for view in block:
                    channel.send(view)
            _require(channel.receive_line(patient=True), "done")
    except (OSError, ValueError, ExchangeFailed) as error:
        raise ExchangeFailed(f"rank {part.rank}'s part of {part.save.folder} to {address}: {error}") from error


def _require(answer: dict[str, Any], word: str) -> None:
    if answer.get(word) is not True:
        raise ExchangeFailed(f"refused: {answer.get('error', answer)}")


# --- the side that receives ---


class Receiver:
    """Listens in a thread of its own and writes what comes into the node's folder. Ends with the process."""

    def __init__(self, folder: Path, bind_address: str, token: str, limits: Limits) -> None:
        """Raises OSError if the address cannot be bound. The kernel chooses the port."""
        self._folder = folder
        self._token = token
        self._limits = limits
        self._free = threading.BoundedSemaphore(limits.at_once)
        family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
        self._listener = socket.create_server((bind_address, 0), family=family, backlog=8)
        self._listener.settimeout(ACCEPT_S)
        self._closed = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="local-receiver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed.set()
        self._thread.join(10)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    connection, peer = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    # Too many open files, for instance: what passes must not end the receiver.
                    logger.warning("local copies: a connection was not accepted: %s", error)
                    self._closed.wait(ACCEPT_S)
                    continue
                thread = threading.Thread(target=self._serve, args=(connection, peer[0]), daemon=True)
                thread.start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        with connection:
            channel = _Channel(connection, self._limits)
            try:
                with self._place():
                    part = self._admitted(channel.receive_line())
                    self._take(channel, part)
                channel.send_line({"done": True})
            except (OSError, Damaged, ExchangeFailed) as error:
                logger.warning("local copies: what %s sent was not taken: %s", peer, error)
                self._say(channel, str(error))

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise ExchangeFailed(f"{self._limits.at_once} copies are being received already")
        try:
            yield
        finally:
            self._free.release()

    def _admitted(self, header: dict[str, Any]) -> Part:
        token = header.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise ExchangeFailed("the token is not that of this generation")
        record = header.get("part")
        part = Part.from_record(record if isinstance(record, dict) else None)
        if part is None:
            raise ExchangeFailed("the header describes no part")
        if part.bytes > self._limits.max_bytes:
            raise ExchangeFailed(f"a part of {part.bytes} bytes, and at most {self._limits.max_bytes} are expected")
        full = lacks_room(self._folder, part.bytes)
        if full:
            raise ExchangeFailed(full)
        return part

    def _take(self, channel: _Channel, part: Part) -> None:
        with PartWriter(self._folder, part) as writer:
            channel.send_line({"go": True})
            buffer = memoryview(bytearray(min(RECEIVE_BYTES, max(part.bytes, 1))))
            left = part.bytes
            while left:
                piece = buffer[: min(left, len(buffer))]
                got = channel.fill(piece)
                left -= got
                if got < len(piece):
                    raise ExchangeFailed(f"the stream ended {left} bytes before the end of {part.bytes}")
                writer.write(piece)
            writer.finish()

    def _say(self, channel: _Channel, why: str) -> None:
        try:
            channel.send_line({"error": why})
        except OSError:
            pass  # the sender has gone; the log says why
