"""Addresses and ports of a run are its own, and remain so until a server of the run takes them."""

from __future__ import annotations

import socket
import time

import pytest

from holdfast.config.problems import ConfigError
from holdfast.local.addresses import Addresses

STORE = ("toy-control-0-0", 29400)


def listener(address: str, port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen()
    return made


def test_two_runs_have_no_address_and_no_port_in_common() -> None:
    first, second = Addresses(), Addresses()
    try:
        mine = {first.new() for _ in range(600)}
        theirs = {second.new() for _ in range(600)}
        assert len(mine) == len(theirs) == 600
        assert not mine & theirs
        assert {address.split(".")[1] for address in mine} != {address.split(".")[1] for address in theirs}
        assert first.ports([STORE], None)[STORE] != second.ports([STORE], None)[STORE]
    finally:
        first.close()
        second.close()


def test_a_held_port_goes_to_no_one_but_a_server_that_may_reuse_it() -> None:
    addresses = Addresses()
    port = addresses.ports([STORE], None)[STORE]
    try:
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("", port))
        with listener("127.9.8.7", port), socket.create_connection(("127.9.8.7", port), timeout=1):
            pass
    finally:
        addresses.close()


def test_the_port_after_it_is_held_too() -> None:
    addresses = Addresses()
    port = addresses.ports([STORE], None)[STORE]
    try:
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("", port + 1))
    finally:
        addresses.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.3.4.5"])
def test_an_asked_port_that_is_taken_is_refused_at_once_with_its_number(address: str) -> None:
    with listener(address, 0) as taken:
        port = taken.getsockname()[1]
        addresses = Addresses()
        began = time.monotonic()
        with pytest.raises(ConfigError, match=f"--port = {port}: another process on this machine has this port"):
            addresses.ports([STORE], port)
        addresses.close()
        assert time.monotonic() - began < 1


def test_an_asked_port_that_another_run_holds_is_refused_and_free_again_after_it() -> None:
    first, second = Addresses(), Addresses()
    try:
        port = first.ports([STORE], None)[STORE]
        with pytest.raises(ConfigError, match=f"--port = {port}"):
            second.ports([STORE], port)
        first.close()
        assert second.ports([STORE, ("other", 1)], port)[STORE] == port
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    addresses = Addresses()
    with pytest.raises(ConfigError, match="it is not a port number"):
        addresses.ports([STORE], port)
    addresses.close()
