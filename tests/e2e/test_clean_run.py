"""A run in peace: the least that everything else rests on."""

from __future__ import annotations

import pytest

from holdfast.config import names
from tests.e2e.conftest import Clean


@pytest.mark.timeout(180)
def test_a_run_completes_with_its_last_step_committed_its_time_accounted_and_nothing_left_alive(clean: Clean) -> None:
    """The real manifest, trainer and launcher on this machine, start to end."""
    assert clean.code == 0, clean.output
    complete = clean.files.record(names.COMPLETE)
    assert complete is not None and complete["step"] == 20
    assert clean.files.committed() == [15, 20]
    assert clean.files.damage(15) == clean.files.damage(20) == []
    assert clean.left == []
    ledger = clean.files.ledger()
    assert ledger.steps == 20 and len(ledger.attempts) == 1 and ledger.attempts[0].complete
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s)
    assert ledger.buckets["unattributed"] < 0.01 * ledger.wall_s
    assert ledger.buckets["productive"] > 0 and ledger.buckets["lost_work"] == 0
    assert ledger.recoveries == () and ledger.anomalies == ()
    assert ledger.saves.committed == (5, 10, 15, 20) and ledger.saves.failed == ()
