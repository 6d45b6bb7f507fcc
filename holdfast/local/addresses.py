"""Addresses and ports of one run, apart from those of any other run on this machine.

Linux answers on all of 127.0.0.0/8, so every pod has an address of its own without privileges. A run reserves 127.N.*.*
and its ports by binding abstract unix sockets, which vanish with the process that holds them.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Sequence

from holdfast.config.problems import ConfigError, Problem

PORTS = range(15000, 32000)
"""Below the range from which Linux takes the ports of outgoing connections, or one of those could take ours."""
_TRIES = 200


def _reserve(name: str) -> socket.socket | None:
    """Hold a name on this machine; None if somebody else has it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0holdfast-{name}")
    except OSError:
        holder.close()
        return None
    return holder


def _hold(port: int) -> socket.socket | None:
    """Bind `port` without listening; None if it is in use.

    A server that sets SO_REUSEADDR, as every store and web server does, can still bind and listen on it, while the
    kernel gives it to nobody else.
    """
    holder = _server_socket()
    try:
        with _server_socket() as probe:
            probe.bind(("", port))
            probe.listen(1)  # refused if anybody listens, whatever the options
        holder.bind(("", port))
    except OSError as error:
        holder.close()
        if error.errno == errno.EACCES:
            raise ConfigError([Problem("--port", port, "only root may use it", "use 1024 to 65535")]) from None
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder


def _server_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


class Addresses:
    """The addresses and ports of one run. Held until close()."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []
        self._count = 0
        start = os.getpid()
        for offset in range(254):
            self._network = 1 + (start + offset) % 254
            if (holder := _reserve(f"network-{self._network}")) is not None:
                self._held.append(holder)
                break
        else:
            raise ConfigError(
                [Problem("127.0.0.0/8", 254, "so many runs are alive on this machine", "end one of them")]
            )

    def new(self) -> str:
        """An address that no pod of this run has had."""
        self._count += 1
        return f"127.{self._network}.{self._count // 250 % 250}.{1 + self._count % 250}"

    def ports(self, hosts: Sequence[tuple[str, int]], asked: int | None) -> dict[tuple[str, int], int]:
        """A port of this machine for each (host, container port). The first gets the port that was asked for.

        Raises ConfigError if the port asked for is in use.
        """
        chosen = {}
        for key in hosts:
            chosen[key] = self._free_port() if asked is None else self._asked_port(asked)
            asked = None
        return chosen

    def close(self) -> None:
        """Give everything back."""
        for holder in self._held:
            holder.close()
        self._held.clear()

    def _asked_port(self, port: int) -> int:
        if not 0 < port < 65536:
            raise ConfigError([Problem("--port", port, "it is not a port number", "use 1024 to 65535")])
        if not self._take([port]):
            why = "another process on this machine has this port"
            raise ConfigError(
                [Problem("--port", port, why, "end that process, choose another port, or leave --port out")]
            )
        return port

    def _free_port(self) -> int:
        for _ in range(_TRIES):
            port = random.SystemRandom().choice(PORTS)
            # Servers commonly use the next port too, as torchrun does beside its store.
            if self._take([port, port + 1]):
                return port
        raise ConfigError(
            [Problem("port", None, f"none of {_TRIES} ports tried is free", "end some servers, or give --port")]
        )

    def _take(self, ports: Sequence[int]) -> bool:
        taken: list[socket.socket | None] = []
        for port in ports:
            taken.append(_reserve(f"port-{port}"))
            taken.append(_hold(port) if taken[-1] is not None else None)
        held = [holder for holder in taken if holder is not None]
        if len(held) < len(taken):
            for holder in held:
                holder.close()
            return False
        self._held += held
        return True
