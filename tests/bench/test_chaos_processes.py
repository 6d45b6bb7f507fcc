"""What `make chaos` starts its processes with: forks that are to be told from new processes by their speed only."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.chaos.processes import Process, Zygote, children

SPAWNER = "tests.bench.spawner"


def _start(zygote: Zygote, folder: Path, *more: str, embryos: int) -> Process:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp"}
    return zygote.start(SPAWNER, [str(folder), *more], environment, folder, folder / "log", embryos)


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_process_that_was_spawned_from_an_embryo_is_what_a_spawned_process_is(tmp_path: Path) -> None:
    with Zygote(tmp_path / "zygote.log", modules=[]) as zygote:
        process = _start(zygote, tmp_path, "3", embryos=2)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pid"] == process.pid
    for number, one in enumerate(report["found"]):
        assert one["pid"] == one["started"] and one["parent"] == process.pid
        assert one["code"] == 0 and one["wish"] == str(number)  # the environment of the moment
    assert [one["name"] == "hf-writer" for one in report["found"]] == [True, True, False]  # then the slow way


def test_embryos_end_with_the_process_that_could_have_spawned_them(tmp_path: Path) -> None:
    with Zygote(tmp_path / "zygote.log", modules=[]) as zygote:
        process = _start(zygote, tmp_path, "0", "stay", embryos=3)
        assert _until((tmp_path / "waits").exists), (tmp_path / "log").read_text()
        below = children(process.pid)
        assert sorted(child.role for child in below) == ["embryo", "embryo", "tracker", "writer"]
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert _until(lambda: not any(child.lives for child in below if child.role == "embryo"))
        for child in below:
            child.kill()
        assert _until(lambda: not any(child.lives for child in below))


def test_what_the_zygote_has_started_does_not_outlive_it(tmp_path: Path) -> None:
    with Zygote(tmp_path / "zygote.log", modules=[]) as zygote:
        process = _start(zygote, tmp_path, "0", "stay", embryos=1)
        assert _until((tmp_path / "waits").exists)
        writer = next(child for child in children(process.pid) if child.role == "writer")
    assert not Path(f"/proc/{process.pid}").exists()
    writer.kill()


def test_exit_codes_reach_the_driver(tmp_path: Path) -> None:
    with Zygote(tmp_path / "zygote.log", modules=[]) as zygote:
        nonsense = zygote.start("tests.bench.no_such_module", [], {}, tmp_path, tmp_path / "log")
        assert nonsense.wait(10) == 1
        assert "no_such_module" in (tmp_path / "log").read_text()
