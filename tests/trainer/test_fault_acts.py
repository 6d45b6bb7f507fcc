"""Each act is the real thing: memory that the kernel refuses, a process that is killed, a disk that takes nothing."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.faults import Fault
from holdfast.run_directory import write_atomically
from tests.trainer.gloo import run_ranks
from trainer.faults import rank_acts, stored
from trainer.faults.connections import silence
from trainer.faults.writer_acts import under

ROOT = Path(__file__).parents[2]


def _in_a_process(function: Any, *arguments: Any, limit_s: float = 60) -> int:
    """Exit code of a new process that calls function(*arguments)."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join(limit_s)
    if process.is_alive():
        process.kill()
        process.join(5)
        raise AssertionError(f"{function.__name__} did not end within {limit_s:g} s")
    assert process.exitcode is not None
    return process.exitcode


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of the processes of tests/trainer/fault_deaths.py."""
    folder = str(tmp_path_factory.mktemp("deaths"))
    command = [sys.executable, "-m", "tests.trainer.fault_deaths", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kind", "code", "runs"), [("rank_sigkill", -9, False), ("hang", 7, True), ("hang_gil", -9, False)]
)
def test_what_only_another_process_can_end_strikes_in_every_phase(
    deaths: dict[str, Any], kind: str, code: int, runs: bool
) -> None:
    """A hang runs Python and obeys SIGTERM; one that holds the interpreter does neither, and only SIGKILL ends it."""
    mine = {case: outcome for case, outcome in deaths.items() if case.rpartition("-")[0] == kind}
    assert len(mine) == 9
    assert {outcome["code"] for outcome in mine.values()} == {code}
    assert {outcome["ran_python"] for outcome in mine.values()} == {runs}


def _out_of_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        rank_acts.exhaust_memory(Fault(kind="rank_oom", step=1))
    except MemoryError:
        assert resource.getrlimit(resource.RLIMIT_AS) == before
        assert len(bytearray(2 * rank_acts.OOM_ROOM_BYTES)) > 0, "a restart in this process has its memory again"
        os._exit(3)


def test_memory_runs_out_by_the_kernels_word_and_is_there_again_afterwards() -> None:
    assert _in_a_process(_out_of_memory) == 3


def _jump() -> None:
    wall, monotonic = time.time(), time.monotonic()
    rank_acts.jump(Fault(kind="clock_jump", step=1, for_s=3600))
    assert 3600 <= time.time() - wall < 3660 and 3600 <= time.time_ns() / 1e9 - wall < 3660
    assert time.monotonic() - monotonic < 60
    os._exit(3)


def test_a_clock_jump_moves_the_wall_clock_and_no_duration() -> None:
    assert _in_a_process(_jump) == 3


def test_a_killed_process_is_dead_when_kill_returns() -> None:
    process = subprocess.Popen(["sleep", "60"])
    rank_acts.kill(process.pid)
    assert process.poll() == -9
    rank_acts.kill(process.pid)  # nor does it mind one that is gone
    rank_acts.kill(None)


# --- the network ---


def test_a_silenced_connection_delivers_nothing_is_not_closed_and_leaves_new_ones_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connected() -> tuple[socket.socket, socket.socket]:
            near = socket.create_connection(server.getsockname(), 5)
            near.settimeout(0.5)
            return near, server.accept()[0]

        near, far = connected()
        spared = {"MASTER_PORT": str(server.getsockname()[1])}
        with near, far:
            with pytest.raises(RuntimeError, match="no TCP connection to a peer"):
                silence(spared)
            far.sendall(b"before")
            assert near.recv(6) == b"before"
            assert silence({}) == 2
            far.sendall(b"after")
            with pytest.raises(TimeoutError):
                near.recv(5)
        again, far = connected()
        with again, far:
            far.sendall(b"whole")
            assert again.recv(5) == b"whole"


def _partitioned(rank: int, world: int) -> str:
    import torch
    import torch.distributed as dist

    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(4), group=group)
    if rank == 0:
        silence()
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1 << 16), group=group)
    except RuntimeError as error:
        assert time.monotonic() - start < 20
        os.environ["ENDED"] = "1"
        # The default group's connections are silent too; leave without it.
        Path("ended").write_text(str(error))
        return "timed out" if "imed out" in str(error) else str(error)
    return "went on"


@pytest.mark.timeout(100)
def test_ranks_whose_connections_are_silent_end_by_their_collectives_timeout() -> None:
    assert "timed out" in run_ranks(_partitioned, 2, timeout_s=60)


# --- the writer process ---


def _write(folder: str) -> dict[str, Any]:
    """Like a part of a save: a tensor file, flushed, then the acknowledgement."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        with open(place / f"__0_{number}.distcp", "wb", buffering=0) as file:
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
    write_atomically(place / "rank-0.json", "{}")
    return {"bytes": 8192}


def test_a_full_disk_is_the_kernels_own_refusal(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        under("full_disk", 1, 0, "seed", str(tmp_path / "save"), _write, str(tmp_path / "save"))
    assert refused.value.errno == errno.ENOSPC
    assert not (tmp_path / "save/rank-0.json").exists()
    under("full_disk", 1, 1, "seed", str(tmp_path / "other"), _write, str(tmp_path / "other"))  # another rank's files


def _refused(folder: str, user: int) -> None:
    if user:
        os.setgid(user)
        os.setuid(user)
    try:
        under("readonly_disk", 1, 0, "seed", folder, _write, folder)
    except PermissionError:
        _write(folder)  # afterwards it may
        os._exit(3)


@pytest.mark.parametrize("user", [0, 1000])
def test_a_folder_that_refuses_does_so_to_root_and_to_others_and_only_for_that_save(tmp_path: Path, user: int) -> None:
    if os.geteuid() != 0 and user != os.geteuid():
        user = 0  # as the user that runs the tests
    folder = Path("/tmp") / f"holdfast-refusal-{os.getpid()}-{user}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    try:
        assert _in_a_process(_refused, str(folder / "save"), user) == 3
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_slow_disk_delays_the_save_once_and_writes_it(tmp_path: Path) -> None:
    flush = os.fsync
    start = time.monotonic()
    assert under("slow_disk", 0.5, 0, "seed", str(tmp_path), _write, str(tmp_path)) == {"bytes": 8192}
    assert 0.5 <= time.monotonic() - start < 5
    assert os.fsync is flush and (tmp_path / "rank-0.json").exists()


def _die(folder: str) -> None:
    under("writer_death", 1, 0, "seed", folder, _write, folder)


def test_a_writer_that_dies_has_written_something_and_not_acknowledged_it(tmp_path: Path) -> None:
    assert _in_a_process(_die, str(tmp_path)) == -9
    assert [path.name for path in tmp_path.iterdir()] == ["__0_0.distcp"]


def test_a_flipped_stored_bit_is_one_bit_of_the_ranks_own_part_wherever_the_save_is_by_then(tmp_path: Path) -> None:
    partial = tmp_path / "step-00000010.g1-c0-r0-s1.partial"

    def commit(folder: str) -> str:
        _write(folder)
        partial.rename(tmp_path / "step-00000010")  # another rank's writer was faster than ours
        return "written"

    assert under("bit_flip_stored", 1, 0, "seed", str(partial), commit, str(partial)) == "written"
    contents = [path.read_bytes() for path in sorted((tmp_path / "step-00000010").glob("*.distcp"))]
    assert sum(byte.bit_count() for content in contents for byte in content) == 1
    with pytest.raises(FileNotFoundError, match="no tensor file of rank 0"):
        stored.flip_in([tmp_path / "nothing"], 0, "seed")


def test_two_faults_at_once_in_one_request_both_act(tmp_path: Path) -> None:
    start = time.monotonic()
    inner = ("slow_disk", 0.5, 0, "seed", str(tmp_path), _write, str(tmp_path))
    under("bit_flip_stored", 1, 0, "seed", str(tmp_path), under, *inner)
    contents = b"".join(path.read_bytes() for path in tmp_path.glob("*.distcp"))
    assert sum(byte.bit_count() for byte in contents) == 1 and time.monotonic() - start >= 0.5


def test_a_flip_in_memory_is_one_bit_of_the_largest_tensor() -> None:
    import torch

    tensors = [torch.zeros(3), torch.zeros(40, 10, dtype=torch.bfloat16), torch.zeros(())]
    stored.flip_in_memory(tensors, "seed")
    bits = [sum(byte.bit_count() for byte in tensor.view(-1).view(torch.uint8).tolist()) for tensor in tensors]
    assert bits == [0, 1, 0]
