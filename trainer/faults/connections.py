"""The rank's open connections to its peers, and how they go silent without being closed."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Mapping

from holdfast.config import names

SO_ATTACH_FILTER = 26
"""linux/socket.h; Python has no name for it."""
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of classic BPF: return 0, that is, keep 0 bytes of each packet."""


def silence(environment: Mapping[str, str] = os.environ) -> int:
    """From now on drop whatever arrives on the open TCP connections to peers; returns how many there are. Neither side
    is told. The connection to the store stays: it is the control pod's, not a peer's. Needs no privilege.

    Raises RuntimeError if there is no connection to a peer.
    """
    store = {_port(environment.get(names.ENV_STORE, "")), _port(f":{environment.get('MASTER_PORT', '')}")}
    program = ctypes.create_string_buffer(DROP_ALL)
    filter_ = struct.pack("HL", 1, ctypes.addressof(program))
    silenced = 0
    for connection in _connections():
        with connection:
            if not {connection.getsockname()[1], connection.getpeername()[1]} & store:
                connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
                silenced += 1
    if not silenced:
        raise RuntimeError("network_partition: this rank has no TCP connection to a peer that could be silenced")
    return silenced


def _connections() -> Iterator[socket.socket]:
    """A duplicate of each connected TCP socket of this process. What is set on one holds for both."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        if _is_connected(found):
            yield found
        else:
            found.close()


def _is_connected(found: socket.socket) -> bool:
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return False
    try:
        found.getpeername()
    except OSError:  # it listens
        return False
    return True


def _port(address: str) -> int | None:
    digits = address.rpartition(":")[2]
    return int(digits) if digits.isdigit() else None
