"""Nothing that a run started outlives it, however it ends; and two runs do not disturb each other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.local.processes import processes_with_token
from tests.local.toys import Document, job, jobset, until

RUN = """
import sys
from pathlib import Path
from holdfast.config.problems import ConfigError
from holdfast.local import RunFolder, Runner, RunnerOptions, load_manifest
manifest, out, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) or None
try:
    with RunFolder(out) as folder:
        options = RunnerOptions(port=port, limit_s=60)
        sys.exit(Runner(load_manifest([manifest]), folder, events=out / "events", options=options).run().code)
except ConfigError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""
# A grandchild in a session of its own, started by a child that has ended.
GRANDCHILD = "(setsid sleep 61 &) ; echo up >>/fsx/up; "
CALM = GRANDCHILD + "trap 'exit 75' TERM; while :; do sleep 0.05; done"
STUBBORN = GRANDCHILD + "trap '' TERM; while :; do sleep 0.05; done"
STORAGE: Document = {
    "container": {
        "volumeMounts": [{"name": "storage", "mountPath": "/fsx"}],
        "ports": [{"name": "store", "containerPort": 29400}],
    },
    "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": "fsx"}}],
}


class Toy:
    """A runner in a process of its own, in the middle of its run."""

    def __init__(self, folder: Path, script: str, port: int = 0) -> None:
        self.out = folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / "jobset.yaml"
        manifest.write_text(yaml.safe_dump(jobset(job("control", script, grace_s=30, **STORAGE))))
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(manifest), str(self.out), str(port)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_up(self) -> str:
        """The token of the run, once its pod is up."""
        until((self.out / "fsx/up").exists)
        record = json.loads((self.out / "run.lock").read_text())
        token, self.alias = record["token"], Path(record["alias"])
        assert len(processes_with_token(token)) >= 3  # shim, command, grandchild
        return str(token)


@pytest.fixture
def toys() -> Iterator[list[Toy]]:
    started: list[Toy] = []
    yield started
    for toy in started:
        toy.process.kill()
        toy.process.communicate(timeout=10)


def test_nothing_is_alive_3_s_after_the_runner_was_killed(tmp_path: Path, toys: list[Toy]) -> None:
    toy = Toy(tmp_path, STUBBORN)
    toys.append(toy)
    token = toy.wait_until_up()
    toy.process.send_signal(signal.SIGKILL)
    time.sleep(3)
    assert processes_with_token(token) == []
    assert [path.name for path in (toy.out / "pods").iterdir()] == ["logs"]
    assert not toy.alias.exists()
    # And the folder is free at once.
    again = Toy(tmp_path, "exit 0")
    toys.append(again)
    assert again.process.wait(20) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_pods_in_order(tmp_path: Path, toys: list[Toy], number: signal.Signals, code: int) -> None:
    toy = Toy(tmp_path, CALM)
    toys.append(toy)
    token = toy.wait_until_up()
    toy.process.send_signal(number)
    assert toy.process.wait(10) == code
    assert processes_with_token(token) == []


def test_a_second_sigint_does_not_wait_for_the_grace_period(tmp_path: Path, toys: list[Toy]) -> None:
    toy = Toy(tmp_path, STUBBORN)
    toys.append(toy)
    token = toy.wait_until_up()
    toy.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert toy.process.poll() is None
    toy.process.send_signal(signal.SIGINT)
    assert toy.process.wait(5) == 130
    assert processes_with_token(token) == []


def test_a_second_run_in_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path, toys: list[Toy]) -> None:
    first = Toy(tmp_path, CALM)
    toys.append(first)
    first.wait_until_up()
    second = Toy(tmp_path, CALM)
    toys.append(second)
    _, message = second.process.communicate(timeout=10)
    assert second.process.returncode == 2
    assert f"host {os.uname().nodename}, pid {first.process.pid}, for " in message
    assert first.process.poll() is None


def test_two_runs_at_once_finish_with_ports_of_their_own(tmp_path: Path, toys: list[Toy]) -> None:
    for name in ("a", "b"):
        toys.append(Toy(tmp_path / name, GRANDCHILD + "sleep 0.5"))
    for toy in toys:
        toy.wait_until_up()
    assert [toy.process.wait(20) for toy in toys] == [0, 0]


def test_a_port_that_is_taken_is_refused_by_number(tmp_path: Path, toys: list[Toy]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        began = time.monotonic()
        toy = Toy(tmp_path, CALM, port)
        toys.append(toy)
        _, message = toy.process.communicate(timeout=20)
    assert toy.process.returncode == 2 and f"--port = {port}: another process" in message
    assert time.monotonic() - began < 10
