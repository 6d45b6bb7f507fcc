"""A forked rank is as good as a new interpreter, ends its door as it ends, and never outlives who it belongs to."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.standby_parts import LIMIT_S, Standby, children, gone, output_of, until
from trainer.standby.protocol import ENV_WAIT_S


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    made = Standby(tmp_path)
    yield made
    made.close()


def test_a_forked_rank_finds_what_a_new_interpreter_would_find(standby: Standby) -> None:
    standby.start()
    words = ("show", "--flag", "ümlaut", "")
    code, output = output_of(standby.door(*words, stdin="typed"))
    assert code == 0, output
    direct = json.loads(standby.direct(*words, stdin="typed").stdout)
    assert json.loads(output) == direct
    assert direct["main"] == "tests.trainer.standby_rank" and direct["stdin"] == "typed" and direct["leader"]


def test_it_shows_the_command_line_of_a_rank(standby: Standby) -> None:
    """By which the supervisor finds it; the template's own would hide it."""
    template = standby.start()
    _, rank = standby.stuck()
    words = Path(f"/proc/{rank}/cmdline").read_text().split("\0")
    assert words[1:5] == ["-u", "-m", "tests.trainer.standby_rank", "stuck"]
    assert "-c" in Path(f"/proc/{template}/cmdline").read_text().split("\0")


def test_ranks_of_one_template_do_not_share_their_random_numbers(standby: Standby) -> None:
    standby.start()
    drawn = [number for _ in range(3) for number in output_of(standby.door("random"))[1].split()]
    assert len(drawn) == len(set(drawn)) == 6


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("exit", "0"), 0),
        (("exit", "3"), 3),
        (("raise",), 1),
        (("signal", str(int(signal.SIGKILL))), -signal.SIGKILL),
        (("signal", str(int(signal.SIGSEGV))), -signal.SIGSEGV),
        (("signal", str(int(signal.SIGTERM))), -signal.SIGTERM),
    ],
)
def test_the_door_ends_as_its_rank_ends(standby: Standby, words: tuple[str, ...], code: int) -> None:
    standby.start()
    ended, output = output_of(standby.door(*words))
    assert ended == code
    assert ("RuntimeError: as it was told" in output) == (words == ("raise",))


def test_one_template_serves_many_ranks_at_once_and_one_after_the_other(standby: Standby) -> None:
    template = standby.start()
    for _ in range(3):
        doors = [standby.door("exit", str(10 + rank), LOCAL_RANK=str(rank)) for rank in range(4)]
        assert [output_of(door)[0] for door in doors] == [10, 11, 12, 13]
    assert children(template) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_door_ends_a_rank_that_holds_the_gil(standby: Standby, number: signal.Signals) -> None:
    standby.start()
    door, rank = standby.stuck()
    door.send_signal(number)
    assert output_of(door)[0] == -number
    assert gone(rank)


def test_a_rank_may_answer_a_signal_with_a_code_of_its_own(standby: Standby) -> None:
    standby.start()
    mark = standby.folder / "mark"
    door = standby.door("handles", str(mark), "75")
    until(lambda: mark.exists() and mark.read_text())
    door.send_signal(signal.SIGTERM)
    assert output_of(door)[0] == 75


@pytest.mark.parametrize("template_is_frozen", [False, True])
def test_a_killed_door_takes_its_rank_with_it_even_if_the_template_cannot_help(
    standby: Standby, template_is_frozen: bool
) -> None:
    """Launchers kill what they have started: the door. With the template frozen it is the kernel that acts."""
    template = standby.start()
    door, rank = standby.stuck()
    other, survivor = standby.stuck("other", LOCAL_RANK="1")
    if template_is_frozen:
        os.kill(template, signal.SIGSTOP)
    door.kill()
    until(lambda: gone(rank))
    assert not gone(survivor) and other.poll() is None
    os.kill(template, signal.SIGCONT)
    assert output_of(standby.door("exit", "4"))[0] == 4


def test_where_the_kernel_cannot_the_template_kills_the_rank_of_a_killed_door(standby: Standby) -> None:
    standby.start("unarmed")
    door, rank = standby.stuck()
    door.kill()
    until(lambda: gone(rank))


def test_a_killed_template_takes_its_ranks_with_it_and_the_doors_say_so(standby: Standby) -> None:
    template = standby.start()
    pairs = [standby.stuck(name, LOCAL_RANK=name) for name in ("0", "1")]
    os.kill(template, signal.SIGKILL)
    assert [output_of(door)[0] for door, _ in pairs] == [-signal.SIGKILL, -signal.SIGKILL]
    assert gone(*(rank for _, rank in pairs))


def test_a_killed_supervisor_leaves_neither_template_nor_rank(standby: Standby) -> None:
    template = standby.start()
    door, rank = standby.stuck()
    assert standby.supervisor is not None
    standby.supervisor.kill()
    until(lambda: gone(template, rank))
    assert output_of(door)[0] == -signal.SIGKILL


def test_a_new_rank_in_a_seat_waits_for_the_end_of_the_one_before(standby: Standby) -> None:
    """A launcher starts the next rank when the door has ended, not when the rank has given back its GPU."""
    standby.start()
    door, rank = standby.stuck(LOCAL_RANK="0")
    neighbour, beside = standby.stuck("beside", LOCAL_RANK="1")
    assert output_of(standby.door("exit", "5", LOCAL_RANK="0"))[0] == 5
    assert gone(rank) and output_of(door)[0] == -signal.SIGKILL
    assert not gone(beside) and neighbour.poll() is None


def test_noise_on_the_socket_does_not_end_the_template(standby: Standby) -> None:
    standby.start()
    for message, count in ((b"noise", 0), (b"rank", 0), (b"rank", 5)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, open("/dev/null", "rb") as null:
            client.connect(str(standby.folder / "s"))
            socket.send_fds(client, [message], [null.fileno()] * count)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(standby.folder / "s"))
    assert output_of(standby.door("exit", "6"))[0] == 6


def test_a_template_that_wakes_up_late_forks_nothing_for_a_door_that_has_given_up(standby: Standby) -> None:
    template = standby.start()
    os.kill(template, signal.SIGSTOP)
    mark = standby.folder / "mark"
    early = standby.door("stuck", str(mark), **{ENV_WAIT_S: "0.3"})
    assert early.wait(LIMIT_S) == 2  # an ordinary rank by now, which does not know these words
    os.kill(template, signal.SIGCONT)
    assert "it has not answered within recovery.standby_wait_s=0.3" in output_of(early)[1]
    assert output_of(standby.door("exit", "0"))[0] == 0  # those before it have been answered
    assert children(template) == [] and not mark.exists()
