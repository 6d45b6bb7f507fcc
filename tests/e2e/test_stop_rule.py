"""What no restart can cure ends the run, says why, and is refused until somebody says that the cause is mended."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import cli
from holdfast.config import names
from tests.e2e.harness import RunFiles, Training, compare

FAULT = "exception-rank1-step12"
THREE_STARTS_S = 400.0
"""A start-up takes more than a minute where two cores are shared with others."""
KILL = "rank_sigkill-rank0-step12"


@contextmanager
def bug(run: RunFiles, fault: str = FAULT) -> Iterator[None]:
    """Make the fault deterministic: forget that it has struck, as a bug strikes on every attempt."""
    over = threading.Event()

    def forget() -> None:
        while not over.is_set():
            (run.run_dir / names.FAULTS / f"{fault}.json").unlink(missing_ok=True)
            time.sleep(0.02)

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_exception_at_the_same_step_ends_the_run_until_its_cause_is_said_to_be_mended(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """The stop rule, from the third attempt to the way on."""
    out = tmp_path / "out"
    with (
        Training(out, "training.min_step_s=0.1", faults=[{"kind": "exception", "rank": 1, "step": 12}]) as training,
        bug(training),
    ):
        assert training.wait(THREE_STARTS_S) == names.EXIT_GIVE_UP, training.output
    terminal = training.record(names.TERMINAL)
    assert terminal is not None
    attempts = "g1-c0-r0, g1-c1-r0, g1-c2-r0"
    for fact in (
        "rank 1: InjectedFault",
        "at step 12",
        f"on 3 attempts ({attempts})",
        f"injected {FAULT}",
        "traceback",
    ):
        assert fact in terminal["reason"], fact
    assert (terminal["code"], terminal["rank"], terminal["step"]) == (93, 1, 12)
    assert set(training.pod_exits().values()) == {names.EXIT_GIVE_UP}
    assert terminal["reason"] in training.output
    for words in (out / "pods" / "logs").glob("*.end"):  # what `kubectl describe pod` shows
        assert terminal["reason"] in words.read_text() and "resume.clear_terminal=" in words.read_text()
    kept = training.committed()
    assert kept and not any(training.damage(step) for step in kept)

    with Training(out, command=["resume", str(out)]) as refused:
        assert refused.wait() == 2
        assert "add --clear-terminal" in " ".join(refused.output.split())
    assert len(training.events("attempt_start")) == 2 * 3

    # The bug is mended; what is left of it is one more exception at that step, which is the first since.
    with Training(out, command=["resume", str(out), "--clear-terminal"]) as resumed:
        assert resumed.wait() == 0, resumed.output
    struck = [event.process.generation for event in resumed.events("fault")]
    assert struck.count(1) == 3 and struck.count(2) == 1
    assert resumed.record(names.TERMINAL) is None
    assert_same_weights(resumed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_killed_at_the_same_step_again_and_again_ends_the_run_and_its_output_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash loop without an exception: nobody but the launcher sees the rank's end."""
    faults = [{"kind": "rank_sigkill", "rank": 0, "step": 12}]
    sets = ("training.min_step_s=0.1", "recovery.standby=true", "recovery.short_pauses=true")
    with Training(tmp_path / "out", *sets, faults=faults) as training, bug(training, KILL):
        assert training.wait(THREE_STARTS_S) == names.EXIT_GIVE_UP, training.output
    terminal = training.record(names.TERMINAL)
    assert terminal is not None and (terminal["rank"], terminal["step"]) == (0, 12)
    three = r"\(g\d+-c\d+, g\d+-c\d+, g\d+-c\d+\)"
    assert re.search(rf"rank 0 ended by SIGKILL at step 12 on 3 attempts {three}, without", terminal["reason"])
    log = training.run_dir / names.LOGS / terminal["attempt"] / "rank0.log"
    assert "restored step" in log.read_text()
    assert cli.main(["status", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"rank 0 at step 12 of {terminal['attempt']}: ended by SIGKILL" in said and str(log) in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_batch_that_was_skipped_for_its_loss_is_skipped_by_the_replay_too_bit_for_bit(tmp_path: Path) -> None:
    """The killed run goes on from step 10 or before, over step 8 or not; the other one never stops."""
    sets = ("recovery.on_bad_loss=skip_batch", "training.min_step_s=0.1")
    bad = {"kind": "nan_loss", "rank": 1, "step": 8}
    with Training(tmp_path / "quiet", *sets, faults=[bad]) as quiet:
        assert quiet.wait(THREE_STARTS_S) == 0, quiet.output
    killed = [bad, {"kind": "rank_sigkill", "rank": 0, "step": 9}]  # step 5 is the newest that can be committed
    with Training(tmp_path / "killed", *sets, faults=killed) as training:
        assert training.wait(THREE_STARTS_S) == 0, training.output
    skips = [(event.process.cycle, event.whole("step")) for event in training.events("batch_skipped")]
    assert sorted(skips) == [(0, 8), (0, 8), (1, 8), (1, 8)], "both ranks, both times"
    assert compare(quiet.run_dir, training.run_dir)["identical"]
