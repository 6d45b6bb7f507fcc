"""What no restart can cure ends the run, says why, and is refused until somebody says that the cause is mended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import RunFiles, Training

FAULT = "exception-rank1-step12"


@contextmanager
def bug(run: RunFiles) -> Iterator[None]:
    """Make the fault deterministic: forget that it has struck, as a bug strikes on every attempt."""
    over = threading.Event()

    def forget() -> None:
        while not over.is_set():
            (run.run_dir / names.FAULTS / f"{FAULT}.json").unlink(missing_ok=True)
            time.sleep(0.02)

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_exception_at_the_same_step_ends_the_run_until_its_cause_is_said_to_be_mended(
    tmp_path: Path, assert_same_weights: Callable[[RunFiles], None]
) -> None:
    """The stop rule, from the third attempt to the way on."""
    out = tmp_path / "out"
    with (
        Training(out, "training.min_step_s=0.1", faults=[{"kind": "exception", "rank": 1, "step": 12}]) as training,
        bug(training),
    ):
        assert training.wait() == names.EXIT_GIVE_UP, training.output
    terminal = training.record(names.TERMINAL)
    assert terminal is not None
    attempts = "g1-c0-r0, g1-c1-r0, g1-c2-r0"
    for fact in ("InjectedFault", "at step 12", f"on 3 attempts ({attempts})", f"injected {FAULT}", "--clear-terminal"):
        assert fact in terminal["reason"], fact
    assert (terminal["code"], terminal["rank"], terminal["step"]) == (93, 1, 12)
    assert set(training.pod_exits().values()) == {names.EXIT_GIVE_UP}
    assert terminal["reason"] in training.output
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
