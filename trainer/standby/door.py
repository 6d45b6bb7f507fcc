"""`python -m trainer.standby.door ARGUMENTS`: what a launcher starts in place of `python -m trainer ARGUMENTS`.

It starts in 0.05 s and imports nothing but the standard library. It becomes an ordinary rank when no template answers;
otherwise it stands for the rank that the template has forked: signals go on to the rank, and it ends as the rank ends.
If this process is killed, the kernel kills the rank (template.py arms the other end of the leash).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from typing import NoReturn

from trainer.standby.protocol import (
    ASK,
    ENV_SOCKET,
    ENV_WAIT_S,
    MESSAGE_BYTES,
    Request,
    unpack,
    write_request,
)

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
END_S = 10.0
"""Without a template to tell how the rank ended: how long its end may take. The kernel is killing it."""


class NoStandby(Exception):
    """Why the rank needs an interpreter of its own."""


class Rank:
    """The rank that this process stands for."""

    def __init__(self, connection: socket.socket, pidfd: int, leash: int) -> None:
        """leash: write end of a pipe; it closes when this process ends, and that kills the rank."""
        self._connection = connection
        self._pidfd = pidfd
        self._leash = leash

    def send(self, number: int, _frame: object = None) -> None:
        """Signal the rank. By pidfd: its process id may be another's once it has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass  # it has ended; its code is on the way

    def wait(self) -> int:
        """Its exit code, negative for a signal."""
        self._connection.settimeout(None)
        code = unpack(self._connection.recv(MESSAGE_BYTES)).get("code")
        if code is None:  # the template died, and its ranks with it
            select.select([self._pidfd], [], [], END_S)
            code = -signal.SIGKILL
        return int(code)


def ask(path: str, wait_s: float) -> Rank:
    """Have the template make a rank of what this process was started with. Raises NoStandby."""
    read_end, leash = os.pipe()
    request = write_request(Request(sys.argv[1:], dict(os.environ), os.getcwd(), sorted(os.sched_getaffinity(0))))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(wait_s)
    try:
        connection.connect(path)
        socket.send_fds(connection, [ASK], [request, read_end, 0, 1, 2])
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
    except TimeoutError:
        raise NoStandby(f"it has not answered within recovery.standby_wait_s={wait_s:g}") from None
    except OSError as error:
        raise NoStandby(f"it cannot be reached: {error}") from None
    finally:
        os.close(request)
        os.close(read_end)
    answer = unpack(message)
    if "pid" not in answer or not descriptors:
        raise NoStandby(str(answer.get("refused", "it ended while this rank waited for it")))
    return Rank(connection, descriptors[0], leash)


def end_like(code: int) -> NoReturn:
    """End with this exit code, or by this signal if it is negative."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left its core; this one would say nothing
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # not reached, unless the signal is blocked
    os._exit(code)


def main() -> NoReturn:
    """Stand for a forked rank, or be a rank."""
    try:
        path = os.environ.get(ENV_SOCKET)
        if path is None:
            raise NoStandby("the supervisor keeps none")
        rank = ask(path, float(os.environ.get(ENV_WAIT_S, "0")) or 1.0)
    except NoStandby as reason:
        print(f"no standby for this rank: {reason}; it starts an interpreter of its own", flush=True)
        os.execv(sys.executable, [sys.executable, "-u", "-m", "trainer", *sys.argv[1:]])
    for number in PASSED_ON:
        signal.signal(number, rank.send)
    end_like(rank.wait())


if __name__ == "__main__":
    main()
