"""`make chaos` in small: real runs, killed at random instants, and whole jobs, broken by random schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.campaign import Campaign
from bench.chaos.records import WorkFile, folded, good
from bench.chaos.stack.campaign import StackCampaign
from bench.chaos.stack.records import Line
from bench.chaos.stack.schedule import LAYERS, Schedule

SEEDS = (0, 1, 3, 4, 7, 29)
"""Every kind of victim."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_again_and_again_loses_no_commit_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "kills.jsonl", "this")
    with Campaign(tmp_path, work, lambda kill: None, steps=24) as campaign:
        campaign.go(SEEDS)
    total = folded(work)
    assert good(total), [kill for kill in work.kills if not kill.ok]
    assert total["kills"] == len(SEEDS) and total["runs"] >= 1 and total["looks"] > 100


def _small() -> list[int]:
    """For each set of layers the first seed with two pods and at least two faults, all with one job in peace."""
    found: dict[str, int] = {}
    for seed in range(500):
        one = Schedule.draw(seed)
        if (one.nodes, one.ranks_per_node, one.spares, one.steps) == (2, 1, 0, 24) and len(one.faults) > 1:
            found.setdefault(one.layers, seed)
    assert found.keys() == set(LAYERS)
    return sorted(found.values())


@pytest.mark.timeout(900)
def test_whole_jobs_under_random_schedules_keep_every_promise(tmp_path: Path) -> None:
    lines: list[Line] = []
    with StackCampaign(tmp_path, "this", lambda line, witnesses: None, lines.append) as campaign:
        campaign.go(_small())
    assert len(lines) == len(LAYERS)
    assert [line for line in lines if not line.ok] == []
    assert all(line.identical for line in lines if line.expected == "bit_equal")
