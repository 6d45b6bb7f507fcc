"""`python -m trainer.standby.template --config F --run-dir D`: imports what ranks import, then forks ranks on request.

It has one thread, no CUDA and no process group, so that a fork of it is as good as a new process; it looks whether that
is so and refuses otherwise. It is the parent of its ranks: it knows how they end, and kills those whose door is gone.
The kernel does the same without it: a rank is killed when the read end of its door's leash hangs up (O_ASYNC with
F_SETSIG), and when the template ends (PR_SET_PDEATHSIG), as the template is when the supervisor ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.standby import become
from trainer.standby.protocol import (
    ASK,
    DESCRIPTORS,
    ENV_PARENT,
    ENV_SOCKET,
    MESSAGE_BYTES,
    Request,
    pack,
    read_request,
)
from trainer.standby.soundness import unfit_to_fork

F_SETSIG = 10
ASK_S = 2.0
"""A door connects and asks at once; one that does not keeps the others waiting no longer than this."""
PREVIOUS_S = 10.0
"""How long the killed rank of an earlier attempt may take to end before the next one starts elsewhere."""
UNFIT = 3
"""Exit code: forks of this process would not be sound. Another one would not be either."""
PER_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "_")
PER_RANK_PREFIXES = (
    *("GROUP_", "ROLE_", "MASTER_", "FT_", "NVRX_", "TORCHELASTIC_", "TORCH_ELASTIC_"),
    *("HOLDFAST_GENERATION", "HOLDFAST_TOKEN", "HOLDFAST_STANDBY_"),
)
"""Variables that launcher and supervisor set anew for each start. No library reads one of them when it is loaded."""


@dataclass(frozen=True)
class Rank:
    """A forked rank and the door that stands for it."""

    pid: int
    local_rank: str
    pidfd: int
    connection: socket.socket
    leash: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the template holds open for it."""
        return (self.pidfd, self.connection.fileno(), self.leash)

    def kill(self) -> None:
        """Kill it; nothing happens if it has ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Template:
    """Serves the doors of one pod."""

    def __init__(self, listener: socket.socket, module: str, sources: tuple[Path, ...]) -> None:
        """module: what a fork runs. sources: folders whose code must still be what was imported."""
        self._listener = listener
        self._module = module
        self._sources = sources
        self._code = _state_of(sources)
        self._environment = dict(os.environ)
        self._ranks: dict[int, Rank] = {}
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork ranks until this process is killed."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                rank: Rank = key.data
                if key.fd == rank.pidfd:
                    self._end(rank)
                elif rank.pid in self._ranks:
                    self._selector.unregister(rank.leash)
                    rank.kill()  # its door is gone; it ends by its pidfd

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError as error:  # no descriptor is left, or the door has gone; its rank starts without us
            print(f"standby: a door could not be answered: {error}", flush=True)
            return
        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        """Fork the rank that a door asks for, or say why not. Nothing that a door sends may end this process."""
        descriptors: list[int] = []
        try:
            connection.settimeout(ASK_S)
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS)
            if message != ASK or len(descriptors) != DESCRIPTORS:
                raise ValueError("this is not a door")
            request = read_request(descriptors[0])
            refusal = self._refusal(request)
            if refusal is not None:
                connection.send(pack(refused=refusal))
            elif not _hung_up(descriptors[1]):
                self._fork(connection, request, descriptors)
                return
        except (OSError, ValueError, TypeError, KeyError) as error:
            print(f"standby: a request failed: {error!r}", flush=True)
        _close(descriptors)
        connection.close()

    def _refusal(self, request: Request) -> str | None:
        unfit = unfit_to_fork()
        if unfit is not None:
            return unfit
        differ = list(_differences(self._environment, request.environment))
        if differ:
            return f"environment variables differ from those it was started with: {', '.join(differ)}"
        if _state_of(self._sources) != self._code:
            return "the code has changed since it was imported"
        if not self._previous_ended(request.environment.get("LOCAL_RANK", "")):
            return f"the killed rank before this one has not ended within {PREVIOUS_S:g} s"
        return None

    def _previous_ended(self, local_rank: str) -> bool:
        """Two ranks in one seat would share a GPU: launchers start the next when the door of the last has ended."""
        for rank in [rank for rank in self._ranks.values() if rank.local_rank == local_rank]:
            rank.kill()
            if not select.select([rank.pidfd], [], [], PREVIOUS_S)[0]:
                return False
            self._end(rank)
        return True

    def _fork(self, connection: socket.socket, request: Request, descriptors: list[int]) -> None:
        memory, leash, *stdio = descriptors
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            others = [fd for rank in self._ranks.values() for fd in rank.descriptors]
            own = [memory, leash, connection.fileno(), self._listener.fileno(), self._selector_descriptor]
            become.run(self._module, request, stdio, template, [*others, *own])
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # no descriptor is left
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        _close([memory, *stdio])
        rank = Rank(pid, request.environment.get("LOCAL_RANK", ""), pidfd, connection, leash)
        self._ranks[pid] = rank
        try:
            _kill_on_hang_up(leash, pid)
        except OSError as error:
            print(f"standby: the kernel will not kill rank process {pid}, this process has to: {error}", flush=True)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
        self._selector.register(leash, selectors.EVENT_READ, rank)
        try:
            socket.send_fds(connection, [pack(pid=pid)], [rank.pidfd])
        except OSError:
            rank.kill()  # the door gave up meanwhile

    @property
    def _selector_descriptor(self) -> int:
        return self._selector.fileno()

    def _end(self, rank: Rank) -> None:
        """Take the exit code of a rank that has ended, and tell its door."""
        if self._ranks.pop(rank.pid, None) is None:
            return
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        try:
            # Before it is reaped, so that the number is still its own. What it has started ends with it or by this.
            os.killpg(rank.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
        for descriptor in (rank.pidfd, rank.leash):
            try:
                self._selector.unregister(descriptor)
            except KeyError:
                pass  # the leash hung up first
        try:
            rank.connection.send(pack(code=code))
        except OSError:
            pass  # nobody stands for it any more
        rank.connection.close()
        _close([rank.pidfd, rank.leash])


def _differences(born: dict[str, str], asked: dict[str, str]) -> Iterator[str]:
    for name in sorted(born.keys() | asked.keys()):
        varies = name in PER_RANK or name.startswith(PER_RANK_PREFIXES)
        if not varies and born.get(name) != asked.get(name):
            yield name


def _state_of(sources: tuple[Path, ...]) -> dict[str, tuple[int, int]]:
    """Size and time of change of each module."""
    files = [(path, path.stat()) for folder in sources for path in folder.rglob("*.py")]
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in files}


def _kill_on_hang_up(leash: int, pid: int) -> None:
    """Have the kernel send SIGKILL to the process when the other end of the pipe closes. Nothing is ever written."""
    fcntl.fcntl(leash, fcntl.F_SETOWN, pid)
    fcntl.fcntl(leash, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)


def _hung_up(leash: int) -> bool:
    poller = select.poll()
    poller.register(leash, select.POLLHUP)
    return bool(poller.poll(0))


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def listen(path: Path) -> socket.socket:
    """Listen before the imports: a door that comes early waits for them instead of paying for its own."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o077)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def main() -> int:
    """Entry of the template. The arguments are those of the ranks."""
    become.die_with(int(os.environ[ENV_PARENT]))
    environment: dict[str, Any] = dict(os.environ)
    listener = listen(Path(os.environ[ENV_SOCKET]))
    # Not for the ranks, whose environment is the door's: numpy's library starts threads when it is loaded, and a
    # question whether there is a GPU would initialize CUDA.
    os.environ.update(OPENBLAS_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
    from trainer.imports import import_all_of_a_rank

    import_all_of_a_rank(Path(sys.argv[sys.argv.index("--config") + 1]))
    os.environ.clear()
    os.environ.update(environment)
    unfit = unfit_to_fork()
    if unfit is not None:
        print(f"standby: {unfit}; ranks start interpreters of their own", flush=True)
        return UNFIT
    root = Path(__file__).parents[2]
    Template(listener, "trainer", (root / "trainer", root / "holdfast")).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
