"""Where no standby serves a rank, the rank starts as it does without one, and its log says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import load_profile
from holdfast.launch import pod_environment
from tests.trainer.standby_parts import Standby, output_of
from trainer.standby.keeper import STARTS, Keeper
from trainer.standby.protocol import ENV_SOCKET
from trainer.standby.template import UNFIT

ROOT = Path(__file__).parents[2]
COLD = "it starts an interpreter of its own\nusage: python -m trainer [-h] --config"


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    made = Standby(tmp_path)
    yield made
    made.close()


def test_a_door_without_a_supervisor_that_keeps_one_is_an_ordinary_rank(standby: Standby) -> None:
    del standby.environment[ENV_SOCKET]
    code, output = output_of(standby.door("--help"))
    assert code == 0 and "the supervisor keeps none; " + COLD in output


def test_a_door_whose_template_is_gone_is_an_ordinary_rank(standby: Standby) -> None:
    code, output = output_of(standby.door("--help"))
    assert code == 0 and "it cannot be reached: [Errno 2] No such file or directory; " + COLD in output


def test_a_door_does_not_wait_for_a_template_that_has_died_of_its_imports(standby: Standby) -> None:
    standby.start("ends")
    code, output = output_of(standby.door("--help"))
    assert code == 0 and "no standby for this rank: it " in output and COLD in output
    assert "has not answered within" not in output


def test_a_template_with_threads_forks_nothing(standby: Standby) -> None:
    standby.start("threads")
    code, output = output_of(standby.door("--help"))
    assert code == 0 and "it has 2 threads (" in output
    assert "), of which a fork would have one; " + COLD in output


def test_a_variable_that_a_library_may_have_read_must_be_the_same(standby: Standby) -> None:
    standby.start()
    assert output_of(standby.door("exit", "7", RANK="3", MASTER_PORT="1", TORCHELASTIC_RUN_ID="x"))[0] == 7
    code, output = output_of(standby.door("--help", OMP_NUM_THREADS="17", NCCL_DEBUG="WARN"))
    assert code == 0 and COLD in output
    assert "differ from those it was started with: NCCL_DEBUG, OMP_NUM_THREADS;" in output


def test_code_that_has_changed_since_it_was_imported_is_not_run(standby: Standby) -> None:
    standby.start()
    assert output_of(standby.door("exit", "8"))[0] == 8
    (standby.sources / "code.py").write_text("1 + 1")
    code, output = output_of(standby.door("--help"))
    assert code == 0 and "the code has changed since it was imported; " + COLD in output


class Process:
    """In place of a template: it has ended with `code`, or runs if that is None."""

    code: int | None = None
    started: list[list[str]]

    def __init__(self, command: list[str], **_: Any) -> None:
        self.pid = os.getpid()
        self.started.append(command)

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9


class Log:
    """Names of the points that were logged."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def point(self, name: str, **_: object) -> None:
        self.points.append(name)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []
    monkeypatch.setattr(Process, "started", commands, raising=False)
    monkeypatch.setattr(subprocess, "Popen", Process)
    return commands


def kept(folder: Path, *sets: str) -> tuple[Keeper, Log]:
    log: Any = Log()
    return Keeper(load_profile("cpu-test", sets), ["--config", "c"], folder, {"A": "b"}, log), log


def test_a_pod_without_the_standby_starts_none_and_its_launcher_gets_no_word_of_it(
    tmp_path: Path, started: list[list[str]]
) -> None:
    for sets in (["recovery.standby=false"], ["recovery.standby=true", "recovery.in_job=false"]):
        made, log = kept(tmp_path, *sets)
        with made:
            made.look_after()
        assert made.environment == {"A": "b"} and started == [] and log.points == []


@pytest.mark.parametrize(("code", "starts"), [(1, STARTS), (-9, STARTS), (UNFIT, 1)])
def test_a_template_that_keeps_ending_is_replaced_a_few_times_and_one_that_is_unfit_never(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, code: int, starts: int
) -> None:
    made, log = kept(tmp_path, "recovery.standby=true")
    with made:
        made.look_after()
        assert len(started) == 1  # it runs
        monkeypatch.setattr(Process, "code", code)
        for _ in range(STARTS + 3):
            made.look_after()
        assert made.pid is None and made.ranks() == []
    assert len(started) == starts
    assert log.points.count("standby_end") == starts


def test_several_ranks_per_node_get_the_threads_that_the_launcher_would_give_them(tmp_path: Path) -> None:
    one, _ = kept(tmp_path, "recovery.standby=true")
    assert "OMP_NUM_THREADS" not in one.environment
    two, _ = kept(tmp_path, "recovery.standby=true", "cluster.ranks_per_node=2")
    assert two.environment["OMP_NUM_THREADS"] == "1"


def test_the_allocator_of_pyarrow_starts_no_thread_where_ranks_are_forked() -> None:
    """Some library imports it on some machines; its thread would make each template unfit."""
    code = (
        "import pyarrow, time\n"
        "kept = pyarrow.allocate_buffer(1 << 22, memory_pool=pyarrow.jemalloc_memory_pool())\n"
        "time.sleep(0.2)\n"
        "from trainer.standby.soundness import unfit_to_fork\n"
        "print(unfit_to_fork())"
    )
    config = load_profile("cpu-test", ["recovery.standby=true"])
    ours = {one.name: one.value for one in pod_environment(config, "job", "worker") if one.value is not None}
    assert "JE_ARROW_MALLOC_CONF" in ours
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def verdict(environment: dict[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    assert verdict(environment | {"JE_ARROW_MALLOC_CONF": ours["JE_ARROW_MALLOC_CONF"]}) == "None"
    assert "2 threads (python, jemalloc_bg_thd)" in verdict(environment), "the claim must be able to fail"
