"""Large jobs are simulated in the time that was promised. CPU seconds of this process: other load does not count."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.scale_arms import ARMS, BEST, fleet
from holdfast.config.failure_rates import FAILURE_RATES, LLAMA3_DAYS
from holdfast.goodput.simulate import Fleet, band, simulate

ROOT = Path(__file__).parents[3]
EVERYTHING = ARMS[BEST]


def test_1024_nodes_for_90_days_take_at_most_2_seconds() -> None:
    """Measured: 0.1 s."""
    begun = time.process_time()
    result = simulate(
        EVERYTHING.durations, Fleet.of(FAILURE_RATES["rsc1"], nodes=1024, spares=16), EVERYTHING.policy, days=90
    )
    assert result.goodput > 0.9 and len(result.interruptions) > 400
    assert time.process_time() - begun < 2


@pytest.mark.slow
def test_100_seeds_of_16384_gpus_for_54_days_take_less_than_a_minute() -> None:
    """Measured: 6 s."""
    begun = time.process_time()
    goodput = band(
        simulate(EVERYTHING.durations, fleet(EVERYTHING), EVERYTHING.policy, seed=seed, days=LLAMA3_DAYS).goodput
        for seed in range(100)
    )
    assert goodput.count == 100
    assert time.process_time() - begun < 60


def test_what_the_trainer_and_the_command_line_import_does_not_load_scipy() -> None:
    """It is not in the training image, and takes a second to import."""
    code = "import sys, holdfast.cli, holdfast.goodput.simulate; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
