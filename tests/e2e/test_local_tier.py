"""The local tier through the real manifest: whoever is lost, training goes on from what the nodes have saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.goodput.timeline import Event
from tests.e2e.harness import RunFiles, Training, compare

STEPS, SHARED = 60, 30
RUN = (f"training.steps={STEPS}", f"checkpoint.interval_steps={SHARED}")
TIERS = ("checkpoint.local.interval_steps=3", "training.min_step_s=0.5", "recovery.spares=1")
FAULTS = [
    {"kind": "rank_sigkill", "rank": 1, "step": 28},
    {"kind": "node_loss", "rank": 0, "step": 56},
]
"""14 s of steps lie before each: the first local save is complete 8 to 10 s after the first step, when the writers of
all ranks have imported torch (measured on two quiet cores)."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_dead_rank_and_a_lost_node_go_on_from_local_saves_and_leave_the_weights_of_a_clean_run(
    tmp_path: Path,
) -> None:
    """The clean run has no local tier. Whoever takes over for the lost node has nothing of that step on its disk."""
    with Training(tmp_path / "quiet", *RUN) as quiet:
        assert quiet.wait() == 0, quiet.output
    with Training(tmp_path / "out", *RUN, *TIERS, faults=FAULTS) as training:
        assert training.wait() == 0, training.output
    killed, lost = (training.events("fault", source=who)[0] for who in ("rank", "runner"))
    assert killed.text("kind") == "rank_sigkill" and lost.text("kind") == "node_loss"
    for fault, shared in ((killed, 0), (lost, SHARED)):
        commits = [event.whole("step") or 0 for event in training.events("commit") if event.start < fault.start]
        assert max(commits, default=0) == shared
        restores = restored_after(training, fault)
        assert {event.process.rank for event in restores} == {0, 1}
        assert {event.text("tier") for event in restores} == {"local"}
        (step,) = {event.whole("step") for event in restores}
        assert step is not None and shared < step < (fault.whole("step") or 0)
    before, after = ({event.process.pod for event in restored_after(training, fault)} for fault in (killed, lost))
    assert len(after - before) == 1, "one pod has read what it never had"
    assert [recovery.layer for recovery in training.ledger().recoveries] == ["in_job", "node"]
    answer = compare(quiet.run_dir, training.run_dir)
    assert answer["identical"] and answer["step"] == STEPS, answer


def restored_after(run: RunFiles, fault: Event) -> list[Event]:
    """Where the ranks of the first attempt after a fault have gone on."""
    later = [event for event in run.events("restore") if event.start > fault.start]
    first = min((event.process.cycle or 0 for event in later), default=0)
    return [event for event in later if event.process.cycle == first]
