"""The neighbour copy over real sockets: whole or not at all, and no side can be kept waiting."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.local_parts import BLOCK, draft, equal, saved, some_bytes, zeros
from trainer.checkpoint.local.exchange import ExchangeFailed, Limits, Receiver, send_part
from trainer.checkpoint.local.files import list_parts, read_part
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part, Save

SAVE = Save(30, "g1-c0-r0", 2)
LIMITS = Limits(max_bytes=1 << 20, idle_s=0.5, total_s=5)
SIZES = (20 * BLOCK + 5, 11 * BLOCK)
TOKEN = "secret"


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    (tmp_path / "there").mkdir()
    made = Receiver(tmp_path / "there", "127.0.0.1", TOKEN, LIMITS)
    yield made
    made.close()


def address(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def until(condition: Callable[[], bool], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def header(part: Part, token: str = TOKEN) -> bytes:
    return json.dumps({"token": token, "part": part.record()}).encode() + b"\n"


def test_a_copy_is_equal_and_durable_when_the_sender_returns(tmp_path: Path, receiver: Receiver) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    send_part(address(receiver), TOKEN, part, FlatBytes(segments), LIMITS)
    (stored,) = list_parts(tmp_path / "there")
    assert stored.part == part
    into = zeros(*SIZES)
    read_part(stored, FlatBytes(into), threads=2)
    assert equal(into, segments)


def test_a_wrong_token_is_refused_and_logged(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    with pytest.raises(ExchangeFailed, match="the token is not that of this generation"):
        send_part(address(receiver), "guess", part, FlatBytes(segments), LIMITS)
    assert "the token is not that" in caplog.text
    assert TOKEN not in caplog.text
    assert files_in(tmp_path / "there") == []


def test_bytes_that_differ_from_their_checksums_are_refused(tmp_path: Path, receiver: Receiver) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    segments[1][100] ^= 1
    with pytest.raises(ExchangeFailed, match="changed on its way"):
        send_part(address(receiver), TOKEN, part, FlatBytes(segments), LIMITS)
    assert files_in(tmp_path / "there") == []


def test_a_part_larger_than_expected_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    (tmp_path / "there").mkdir()
    small = Receiver(tmp_path / "there", "127.0.0.1", TOKEN, replace(LIMITS, max_bytes=part.bytes - 1))
    with pytest.raises(ExchangeFailed, match="at most"):
        send_part(address(small), TOKEN, part, FlatBytes(segments), LIMITS)
    small.close()


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[1]\n",
        json.dumps({"token": TOKEN}).encode() + b"\n",
        header(replace(draft(Save(30, "../../../x", 1), 0, 1, 0), xxh3=())),
    ],
)
def test_a_header_that_describes_no_part_is_refused(tmp_path: Path, receiver: Receiver, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port), 5) as raw:
        raw.sendall(line)
        assert "error" in json.loads(raw.makefile().readline())
    assert files_in(tmp_path / "there") == []


@pytest.mark.parametrize("sent", [0, 1, BLOCK * 3])
def test_a_stream_that_ends_early_leaves_nothing(tmp_path: Path, receiver: Receiver, sent: int) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    with socket.create_connection(("127.0.0.1", receiver.port), 5) as raw:
        raw.sendall(header(part))
        assert json.loads(raw.makefile().readline()) == {"go": True}
        raw.sendall(segments[0].numpy().tobytes()[:sent])
    until(lambda: files_in(tmp_path / "there") == [])
    assert list_parts(tmp_path / "there") == []


def test_a_sender_that_stops_is_given_up_and_its_place_is_free_again(tmp_path: Path, receiver: Receiver) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    stuck = [socket.create_connection(("127.0.0.1", receiver.port), 5) for _ in range(LIMITS.at_once)]
    for raw in stuck:
        raw.sendall(header(part))
        assert json.loads(raw.makefile().readline()) == {"go": True}
    with pytest.raises(ExchangeFailed, match="2 copies are being received already"):
        send_part(address(receiver), TOKEN, part, FlatBytes(segments), LIMITS)
    until(lambda: files_in(tmp_path / "there") == [])
    send_part(address(receiver), TOKEN, part, FlatBytes(segments), LIMITS)
    for raw in stuck:
        raw.close()
    assert [stored.part for stored in list_parts(tmp_path / "there")] == [part]


def test_a_trickle_ends_with_the_limit_of_the_whole(tmp_path: Path) -> None:
    part = saved(tmp_path / "here", SAVE, 1, 4, some_bytes(1, *SIZES))
    (tmp_path / "there").mkdir()
    strict = Receiver(tmp_path / "there", "127.0.0.1", TOKEN, replace(LIMITS, total_s=0.6))
    with socket.create_connection(("127.0.0.1", strict.port), 5) as raw:
        raw.sendall(header(part))
        assert json.loads(raw.makefile().readline()) == {"go": True}
        started = time.monotonic()
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while time.monotonic() < started + 10:
                raw.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - started < 5
    until(lambda: files_in(tmp_path / "there") == [])
    strict.close()


def test_a_receiver_that_never_answers_costs_the_sender_its_limit_only(tmp_path: Path) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        started = time.monotonic()
        with pytest.raises(ExchangeFailed, match="timed out"):
            send_part(f"127.0.0.1:{deaf.getsockname()[1]}", TOKEN, part, FlatBytes(segments), LIMITS)
        assert time.monotonic() - started < 5


def test_a_neighbour_that_has_gone_is_an_error_at_once(tmp_path: Path, receiver: Receiver) -> None:
    segments = some_bytes(1, *SIZES)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    receiver.close()
    with pytest.raises(ExchangeFailed, match="refused"):
        send_part(address(receiver), TOKEN, part, FlatBytes(segments), LIMITS)


BIG = 48 << 20


def _send_slowly(port: int, folder: str) -> None:
    """A sender that stands still after its first bytes, until it is killed."""
    segments = some_bytes(1, BIG)
    part = saved(Path(folder), SAVE, 1, 4, segments)
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(header(part))
        raw.makefile().readline()
        raw.sendall(segments[0].numpy().tobytes()[: BIG // 2])
        signal.pause()


def test_a_sender_killed_in_the_middle_leaves_nothing_at_the_receiver(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    patient = Receiver(there, "127.0.0.1", TOKEN, Limits(max_bytes=BIG, idle_s=30, total_s=60))
    process = multiprocessing.get_context("spawn").Process(
        target=_send_slowly, args=(patient.port, str(tmp_path / "here"))
    )
    process.start()
    until(lambda: any(name.endswith(".tmp") for name in files_in(there)), 60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    until(lambda: files_in(there) == [])
    patient.close()


def _receive(folder: str, ports: Any) -> None:
    receiver = Receiver(Path(folder), "127.0.0.1", TOKEN, Limits(max_bytes=BIG, idle_s=30, total_s=60))
    ports.put(receiver.port)
    signal.pause()


def test_a_receiver_killed_in_the_middle_is_an_error_for_the_sender_and_a_torn_copy_is_no_part(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=_receive, args=(str(there), ports))
    process.start()
    port = ports.get(timeout=60)
    segments = some_bytes(1, BIG)
    part = saved(tmp_path / "here", SAVE, 1, 4, segments)
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(header(part))
        assert json.loads(raw.makefile().readline()) == {"go": True}
        raw.sendall(segments[0].numpy().tobytes()[: BIG // 2])
        process.kill()
        process.join(10)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            for _ in range(1000):
                raw.sendall(b"x" * BLOCK)
    assert any(name.endswith(".tmp") for name in files_in(there))
    assert list_parts(there) == []
