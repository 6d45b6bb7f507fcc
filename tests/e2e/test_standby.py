"""Whole runs whose ranks are forked by the standby of their pod: restarts, a drain, and the loss of the standby."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import dump, load_profile, names
from holdfast.run_directory import RunDirectory
from tests.e2e.harness import ROOT, RunFiles, Training, members

SETS = ("recovery.standby=true", "recovery.short_pauses=true")


def template_of(training: Training, stem: str) -> int:
    """Process id of a pod's template. Its forks show the command line of a rank."""

    def found() -> int | None:
        there = members(training.pod(stem))
        return next((member.pid for member in there if "trainer.standby.template" in member.words), None)

    return training.until(f"a template in pod {stem}", found)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_and_a_hung_rank_are_replaced_by_forks_and_train_the_same_weights(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    faults = [{"kind": "rank_sigkill", "rank": 1, "step": 8}, {"kind": "hang", "rank": 0, "step": 16}]
    with Training(tmp_path / "out", *SETS, "training.min_step_s=0.1", faults=faults) as training:
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    starts = training.events("process_start")
    assert len(starts) == 6 and all(event.fields["warm"] for event in starts)
    assert {(event.process.rank, event.process.cycle) for event in starts} == {(r, c) for r in (0, 1) for c in range(3)}
    recoveries = training.ledger().recoveries
    assert [recovery.layer for recovery in recoveries] == ["in_job", "in_job"]
    for recovery in recoveries:
        parts = recovery.breakdown
        missing = {part for part, seconds in parts.items() if seconds is None}
        assert missing <= {"restored"}, "only a rank that found no commit may leave out a part"
        total = sum(seconds for seconds in parts.values() if seconds is not None)
        assert recovery.recovered_s is not None and total == pytest.approx(recovery.recovered_s, abs=0.01)
        assert (parts["started"] or 0) > 0, "the start of a fork is when it was forked, not when its template began"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_standby_costs_one_restart_and_is_replaced(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    with Training(tmp_path / "out", *SETS, "training.min_step_s=0.5") as training:
        training.until_finished(3)
        os.kill(template_of(training, "workers-1"), signal.SIGKILL)
        assert training.wait() == 0, training.output
    assert_same_weights(training)
    (recovery,) = training.ledger().recoveries
    assert recovery.layer == "in_job"
    (ended,) = training.events("standby_end", source="supervisor")
    begun = [event.process.pod for event in training.events("standby_start", source="supervisor")]
    assert begun.count(ended.process.pod) == 2 and len(begun) == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_forked_ranks_save_and_leave_when_their_node_is_asked_to_go(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """The supervisor finds them although they are not children of its launcher."""
    patience = ("recovery.term_timeout_s=40", "cluster.grace_period_s=60", "recovery.spares=1")
    sets = (*SETS, *patience, "checkpoint.interval_steps=20", "training.min_step_s=0.3")
    with Training(tmp_path / "out", *sets) as training:
        training.until_finished(4)
        gone = next(event.process.pod for event in training.events("attempt_start") if event.process.rank == 1)
        stem = next(word for word in ("workers-0", "workers-1", "workers-2") if word in gone)
        os.kill(training.process(stem, "supervisor"), signal.SIGTERM)
        assert training.wait() == 0, training.output
    assert training.pod_exits()[gone] == names.EXIT_PREEMPTED
    (recovery,) = training.ledger().recoveries
    assert recovery.lost_steps == 0
    assert_same_weights(training)


LATE = """
import os, runpy, sys
from pathlib import Path
from trainer.imports import import_all_of_a_rank
import_all_of_a_rank(Path(sys.argv[2]))
before = set(sys.modules)
def ended(code):
    late = sorted(set(sys.modules) - before - {"trainer.__main__"})
    print("LATE", code, *late, flush=True)
    os.kill(os.getpid(), 9)
os._exit = ended
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""
HARMLESS = {"torch.profiler._cupti_monitor", "torch.utils._sympy.reference", "stringprep", "multiprocessing.popen_fork"}
"""Less than 1 ms together."""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_standby_has_imported_whatever_a_whole_run_of_a_rank_imports(tmp_path: Path) -> None:
    """Otherwise each restart pays for the rest, in a part of it that says nothing of imports."""
    one = ("cluster.nodes=1", "recovery.in_job=false", "recovery.standby=false", "training.steps=6")
    config = tmp_path / "run.yaml"
    config.write_text(dump(load_profile("cpu-test", one)))
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    owner = RunDirectory(run_dir).take(nodes=1, job="job", jobset_attempt=0, pod="control", lease_s=600)
    environment = {
        **os.environ,
        **dict.fromkeys(("RANK", "LOCAL_RANK", "MASTER_PORT"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "OMP_NUM_THREADS"), "1"),
        **dict.fromkeys((names.ENV_STORAGE, names.ENV_SCRATCH), str(tmp_path)),
        "MASTER_ADDR": "127.0.0.1",
        names.ENV_GENERATION: str(owner.generation),
        names.ENV_TOKEN: owner.token,
    }
    done = subprocess.run(
        [sys.executable, "-c", LATE, "--config", str(config), "--run-dir", str(run_dir)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LATE 0 ")] or [done.stdout + done.stderr]
    late = set(line.removeprefix("LATE 0 ").split())
    assert late <= HARMLESS, late - HARMLESS
