"""How a pod leaves: ranks with work to lose may save it, the store waits for the workers, nothing waits for ever."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.config import names
from tests.trainer.fake_pod import FakePod, runs, wait_for

RANK = """
import os, sys, time
scratch, kind = os.environ["SCRATCH"], sys.argv[1]
if kind != "restores":
    open(f"{scratch}/trains-{os.getpid()}", "w").close()
open(f"{scratch}/up", "w").write(str(os.getpid()))
while kind != "saves" or not os.path.exists(f"{scratch}/leave.json"):
    time.sleep(0.02)
time.sleep(1)
print("saved what it was told:", open(f"{scratch}/leave.json").read(), flush=True)
sys.exit(75)
"""
"""A rank that saves when it is asked to, one that hangs, or one that has not begun to train."""
LISTENS = """
import os, socket, sys, time
server = socket.create_server(("", int(sys.argv[1])))
own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
open(os.environ["SCRATCH"] + "/up", "w").close()
accepted = [server.accept(), server.accept()]
time.sleep(60)
"""
"""A store with a client of its own, as nvrx-control has."""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[FakePod]:
    fake = FakePod(tmp_path)
    yield fake
    fake.close()


def start_rank(pod: FakePod, kind: str, *sets: str) -> subprocess.Popen[str]:
    """A worker whose launcher has started one rank, and would say so when that ends."""
    pod.take()
    folder = pod.run_dir.parent
    (folder / "trainer.py").write_text(RANK)
    rank = f"$PYTHON -m trainer {kind} & wait $!; echo launcher saw the end; sleep 60"
    process = pod.start(f"cd {folder}; export PYTHONPATH=; {rank}", "worker", *sets)
    pod.until_ready()
    wait_for(pod.pids)
    return process


def test_ranks_that_train_save_and_end_by_themselves_before_the_launcher_knows(pod: FakePod) -> None:
    """It would answer with a rendezvous, and take a seat in it that it leaves at once."""
    process = start_rank(pod, "saves")
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and "stopped by signal SIGTERM" in output.splitlines()[-1]
    assert 'saved what it was told: {"why": "stopped by signal SIGTERM", "until": ' in output
    assert re.search(r"ranks of this pod asked to save and leave: 1; [56]\.\d s are left", output)
    assert "all ranks of this pod have left" in output
    assert "launcher saw the end" not in output
    assert not any(map(runs, pod.pids()))


def test_a_rank_that_never_comes_to_the_end_of_its_step_is_killed_in_time(pod: FakePod) -> None:
    process = start_rank(pod, "hangs", "recovery.term_timeout_s=2")
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and 1.9 < time.monotonic() - since < 6
    assert "ranks that have not left in time and are killed: 1" in output
    assert not any(map(runs, pod.pids()))


def test_ranks_that_still_restore_have_nothing_to_save_and_end_at_once(pod: FakePod) -> None:
    process = start_rank(pod, "restores")
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and time.monotonic() - since < 4
    assert "asked to save" not in output
    assert not any(map(runs, pod.pids()))


def test_ranks_that_finish_the_run_instead_end_the_pod_with_0(pod: FakePod) -> None:
    process = start_rank(pod, "saves")
    pod.run.write_complete(step=20)
    process.send_signal(signal.SIGTERM)
    assert pod.ends(process)[0] == 0


def test_the_store_waits_for_its_clients_and_asks_the_workers_to_leave(pod: FakePod) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    program = pod.run_dir.parent / "listens.py"
    program.write_text(LISTENS)
    process = pod.start(f"exec $PYTHON {program} {port}", names.CONTROL, port=port)
    pod.until_ready()
    with socket.create_connection(("127.0.0.1", port)):
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: pod.run.asked_to_leave(1))
        time.sleep(0.5)
        assert process.poll() is None
    since = time.monotonic()
    code, output = pod.ends(process)
    assert code == 75 and time.monotonic() - since < 3
    assert "still open" not in output


def test_the_store_does_not_wait_for_a_lost_client_longer_than_ranks_may_take(pod: FakePod) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    program = pod.run_dir.parent / "listens.py"
    program.write_text(LISTENS)
    process = pod.start(f"exec $PYTHON {program} {port}", names.CONTROL, "recovery.term_timeout_s=2", port=port)
    pod.until_ready()
    with socket.create_connection(("127.0.0.1", port)):
        since = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, output = pod.ends(process)
    assert code == 75 and 2.9 < time.monotonic() - since < 8
    assert "connections to the store that are still open: 1" in output


def test_a_worker_leaves_when_its_control_pod_does(pod: FakePod) -> None:
    process = start_rank(pod, "saves")
    pod.run.ask_to_leave(1, "drained")
    code, output = pod.ends(process)
    assert code == 75 and '"why": "the control pod leaves"' in output


@pytest.mark.parametrize("role", ["worker", names.CONTROL])
def test_a_pod_that_comes_when_the_capacity_ends_starts_nothing_and_says_why(pod: FakePod, role: str) -> None:
    end = (datetime.now(UTC) + timedelta(seconds=60)).replace(microsecond=0)
    sets = (f"cluster.capacity_ends_at={end.isoformat()}", "recovery.leave_before_s=61")
    code, output = pod.ends(pod.start("touch $RUN/launched", role, *sets))
    assert code == 75 and not (pod.run_dir / "launched").exists()
    said = output.splitlines()[-1]
    assert f"the capacity ends at {end:%Y-%m-%dT%H:%M:%SZ} (cluster.capacity_ends_at)" in said
    assert "recovery.leave_before_s=61" in said


def test_a_pod_leaves_by_itself_before_the_capacity_ends(pod: FakePod) -> None:
    end = datetime.now(UTC) + timedelta(seconds=75)
    sets = (f"cluster.capacity_ends_at={end.isoformat()}", "recovery.leave_before_s=60")
    process = start_rank(pod, "saves", *sets)
    code, output = pod.ends(process)
    assert code == 75 and "saved what it was told" in output
    assert (end - datetime.now(UTC)).total_seconds() > 45
