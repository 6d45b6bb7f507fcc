"""A run directory is resumed by the experiment that made it, or by nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.conftest import Clean
from tests.e2e.harness import RunFiles, Training, compare


def interrupted(clean: Clean, out: Path) -> RunFiles:
    """A copy of the clean run as it was when step 15 was its last commit."""
    shutil.copytree(clean.out, out, symlinks=True)
    run = RunFiles(out / "run")
    (run.run_dir / names.COMPLETE).unlink()
    shutil.rmtree(run.run_dir / names.CHECKPOINTS / names.step_folder(20))
    assert run.committed() == [15]
    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_seed_is_refused_by_name_and_nothing_is_lost_and_allowed_changes_go_on(
    tmp_path: Path, clean: Clean
) -> None:
    """The checkpoint's experiment and the config's must be the same one."""
    out = tmp_path / "out"
    run = interrupted(clean, out)
    with Training(out, "seed=5") as refused:
        assert refused.wait() == names.EXIT_CONFIG, refused.output
    terminal = run.record(names.TERMINAL)
    assert terminal is not None and terminal["code"] == names.EXIT_CONFIG
    for fact in ("seed = 5", "1234", "resume.allow_changes"):
        assert fact in terminal["reason"], fact
    assert run.committed() == [15] and run.damage(15) == []
    assert run.finished(generation=2) == 0

    with Training(out) as again:
        assert again.wait() == names.EXIT_CONFIG
        assert "--clear-terminal" in again.output and "--set KEY=VALUE" in again.output
    allow = ["--set", 'resume.allow_changes=["seed"]']
    with Training(out, command=["resume", str(out), "--clear-terminal", *allow]) as allowed:
        assert allowed.wait() == 0, allowed.output
    assert {event.whole("step") for event in run.events("restore")} == {15}
    assert run.committed() == [15, 20]
    assert run.marker(20)["generation"] == 3
    assert not compare(clean.files.run_dir, run.run_dir)["identical"]  # other samples since step 15


@pytest.mark.timeout(60)
def test_a_complete_run_is_not_started_again_and_says_so(tmp_path: Path, clean: Clean) -> None:
    """Exit code 0 without a word would look like a training that took no time."""
    out = tmp_path / "out"
    shutil.copytree(clean.out, out, symlinks=True)
    with Training(out, "seed=5") as again:
        assert again.wait(30) == 0
        assert "This run is complete, step 20 is committed: nothing is started." in again.output
    with Training(out, "training.steps=40") as longer:
        assert longer.wait(30) == names.EXIT_CONFIG
        assert "training.steps = 40: this run is complete at step 20" in longer.output
    assert longer.record(names.TERMINAL) is None
