"""What the writer process and the loop do with local saves, one process and no group."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.local_nodes import config
from tests.trainer.local_parts import equal, some_bytes, zeros
from trainer.checkpoint.local import folder_of, persist
from trainer.checkpoint.local.exchange import Limits, Receiver
from trainer.checkpoint.local.files import list_parts, read_part
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Save
from trainer.checkpoint.local.persist import LocalEquipment, equip_local, receiver_port, save_local
from trainer.checkpoint.segments import Handle

LIMITS = Limits(max_bytes=1 << 20, idle_s=2, total_s=5)


@pytest.fixture
def equipment(tmp_path: Path) -> Iterator[LocalEquipment]:
    segments = [segment.share_memory_() for segment in some_bytes(1, 5000, 300)]
    handles = tuple(Handle.of(segment) for segment in segments)
    yield LocalEquipment(tmp_path / "here", 0, 2, "layout", "127.0.0.1", "secret", LIMITS, handles)
    for receiver in persist._receivers:
        receiver.close()
    persist._receivers.clear()
    persist._equipment.clear()


def saves(folder: Path) -> list[int]:
    return [stored.part.save.serial for stored in list_parts(folder)]


def test_a_save_is_written_copied_and_equal_on_both_nodes(tmp_path: Path, equipment: LocalEquipment) -> None:
    equip_local(equipment)
    (tmp_path / "there").mkdir()
    other = Receiver(tmp_path / "there", "127.0.0.1", "secret", LIMITS)
    result = save_local(Save(10, "g1-c0-r0", 1), (), f"127.0.0.1:{other.port}")
    other.close()
    assert (result["bytes"], result["copied"], result["copy_error"]) == (5300, True, None)
    for folder in (tmp_path / "here", tmp_path / "there"):
        (stored,) = list_parts(folder)
        into = zeros(5000, 300)
        read_part(stored, FlatBytes(into), threads=1)
        assert equal(into, [handle.open() for handle in equipment.segments])


def test_a_copy_that_fails_is_no_failed_save_and_says_why(tmp_path: Path, equipment: LocalEquipment) -> None:
    equip_local(equipment)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    result = save_local(Save(10, "g1-c0-r0", 1), (), f"127.0.0.1:{port}")
    assert not result["copied"]
    assert "refused" in result["copy_error"]
    assert saves(tmp_path / "here") == [1]


def test_a_node_never_holds_more_than_what_is_kept_and_the_save_being_written(
    tmp_path: Path, equipment: LocalEquipment
) -> None:
    equip_local(equipment)
    made = [Save(10 * serial, "g1-c0-r0", serial) for serial in range(1, 7)]
    for place, save in enumerate(made):
        save_local(save, tuple(one.folder for one in made[max(place - 2, 0) : place]), None)
        assert saves(tmp_path / "here") == [one.serial for one in made[max(place - 2, 0) : place + 1]]


def test_the_receiver_lives_on_when_the_segments_come(equipment: LocalEquipment) -> None:
    equip_local(replace(equipment, segments=()))
    port = receiver_port()
    equip_local(equipment)
    assert receiver_port() == port > 0


def test_another_generations_token_gets_another_receiver(equipment: LocalEquipment) -> None:
    equip_local(equipment)
    port = receiver_port()
    equip_local(replace(equipment, token="other"))
    assert receiver_port() not in (0, port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 2)


def test_an_address_that_is_not_ours_stops_no_save(
    tmp_path: Path, equipment: LocalEquipment, caplog: pytest.LogCaptureFixture
) -> None:
    equip_local(replace(equipment, host="192.0.2.1"))
    assert receiver_port() == 0
    assert "cannot receive copies at 192.0.2.1" in caplog.text
    save_local(Save(10, "g1-c0-r0", 1), (), None)
    assert saves(tmp_path / "here") == [1]


def test_the_folder_is_where_the_manifest_mounts_the_nodes_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_NODE_VOLUME", raising=False)
    assert folder_of(config(2)) == Path("/local/cpu-test")
    monkeypatch.setenv("HOLDFAST_NODE_VOLUME", "/elsewhere")
    assert folder_of(config(2)) == Path("/elsewhere/cpu-test")
