"""`make chaos` in small: real runs, killed at random instants, go on and end with the right weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.campaign import Campaign
from bench.chaos.records import WorkFile, folded, good

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
