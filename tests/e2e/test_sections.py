"""The rank monitor's limits: each phase has its own. A slow phase is no hang, and a hang in a step is seen soon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import launch
from holdfast.config import RunConfig, load_profile
from holdfast.local.processes import TOKEN_VARIABLE
from tests.e2e.harness import ROOT, end_all
from tests.e2e.pods import free_port

SLOW_S = 12.0
FROZEN_S = 4.0
HANG_S = 40.0
STEP_LIMIT_S = 6.0
"""The learned one: its floor, since steps are quick."""
CONFIGURED_S = 30.0
LINE = re.compile(r"SECTIONS (\d+\.\d+) rank(\d) cycle(\d) (.+)")
SETS = (
    "cluster.nodes=1",
    "cluster.ranks_per_node=4",
    f"recovery.step_section_timeout_s={CONFIGURED_S}",
    f"recovery.step_timeout_floor_s={STEP_LIMIT_S}",
    "recovery.step_timeout_after_steps=3",
    "recovery.workload_check_interval_s=0.5",
)


def command(config: RunConfig, port: int, run_dir: Path) -> list[str]:
    """The launcher line of a worker pod, with the toy rank in place of `-m trainer`."""
    argv = launch.launcher_argv(
        config,
        generation=1,
        nodes=1,
        store=f"127.0.0.1:{port}",
        local_addr="127.0.0.1",
        group_rank=0,
        master="127.0.0.1",
        rank_args=[],
    )
    rank = [str(Path(__file__).with_name("sections_rank.py")), str(SLOW_S), str(FROZEN_S), str(HANG_S)]
    # The last -m is the ranks'; the launcher itself may be a module too.
    return [*argv[: len(argv) - 1 - argv[::-1].index("-m")], *rank, str(run_dir), *SETS]


def noticed(log: str) -> float:
    """Wall time at which the launcher knew of a failure."""
    (said,) = re.findall(r"Event: failure_detected .* Time: (.+) UTC", log)
    return datetime.fromisoformat(said).replace(tzinfo=UTC).timestamp()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_slow_phases_are_no_hang_and_a_stalled_step_is_ended_within_its_limit_and_once(tmp_path: Path) -> None:
    """case-16: ranks are slow for 12 s, each in another phase, and one is frozen for 4 s, as by a debugger; a step may
    take 6 s, which was learned. Then one step stalls."""
    config, port, token = load_profile("cpu-test", SETS), free_port(), os.urandom(8).hex()
    scratch = Path(f"/tmp/hf-e2e-{token[:6]}")
    scratch.mkdir()
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        TOKEN_VARIABLE: f"{token}.pod",
    }
    log = tmp_path / "launcher.log"
    try:
        with open(log, "wb") as output, open(tmp_path / "control.log", "wb") as control_output:
            control = subprocess.Popen(
                launch.control_argv(config, generation=1, nodes=1, port=port),
                env=environment,
                stdout=control_output,
                stderr=subprocess.STDOUT,
            )
            launcher = subprocess.Popen(
                command(config, port, tmp_path / "run"),
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
            )
            code = launcher.wait(120)
    finally:
        end_all(token)
        control.wait(10)
        shutil.rmtree(scratch)
    said = {(int(rank), int(cycle), what): float(t) for t, rank, cycle, what in LINE.findall(log.read_text())}
    assert code == 0, log.read_text()
    # Every slow phase took its 12 s, more than twice the step's limit, and nobody was restarted for it.
    phases = (
        (0, "init begun", "init done"),
        (1, "init done", "restore done"),
        (3, "restore done", "first step done"),
        (2, "frozen step done", "checkpoint done"),
    )
    for rank, before, after in phases:
        assert said[rank, 0, after] - said[rank, 0, before] >= SLOW_S, after
    assert said[2, 0, "frozen step done"] - said[2, 0, "frozen step begun"] >= FROZEN_S
    assert {cycle for _, cycle, _ in said} == {0, 1}
    # The stalled step ended the first cycle, soon after its limit, and only that; the log names the rank.
    assert (1, 0, "last step done") not in said and (1, 1, "last step done") in said
    assert STEP_LIMIT_S < noticed(log.read_text()) - said[1, 0, "last step begun"] < STEP_LIMIT_S + 5
    assert log.read_text().count("Section 'step' has been open for") == 1
    assert "local_rank: 1 (pid:" in log.read_text()
