"""docs/scale.md says what was simulated, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import scale, scale_page
from bench.scale_arms import ARMS, BEST, INPUTS, WHOLE, fleet
from holdfast.config import ConfigError
from holdfast.config.failure_rates import LLAMA3_CAUSES
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.simulate import simulate

ROOT = Path(__file__).parents[2]
AGAIN = "Run `python -m bench.scale`"


def test_the_page_is_what_the_kept_numbers_make() -> None:
    assert scale_page.PAGE.read_text(encoding="utf-8") == scale_page.page(scale_page.read()), (
        "run `python -m bench.scale --page`"
    )


def test_the_kept_numbers_start_from_the_measurements_and_defaults_as_they_are() -> None:
    kept = scale_page.read()
    assert kept["inputs"] == [asdict(one) for one in INPUTS.values()], AGAIN
    assert [arm["name"] for arm in kept["arms"]] == [arm.name for arm in ARMS], AGAIN
    assert all(list(arm["buckets_s"]) == list(BUCKETS) for arm in kept["arms"]), AGAIN


def test_the_kept_numbers_are_those_of_the_simulation() -> None:
    """Two seeds of one arm, again: the mean number of each kind and the goodput lie in what was kept."""
    kept = scale_page.read()
    arm = ARMS[BEST]
    for seed in (0, 1):
        again = simulate(arm.durations, fleet(arm), arm.policy, seed=seed, days=kept["days"])
        assert (
            kept["arms"][BEST]["goodput"]["low"] - 0.01 < again.goodput < kept["arms"][BEST]["goodput"]["high"] + 0.01
        )


def test_every_bucket_of_every_arm_adds_up_to_the_54_days() -> None:
    kept = scale_page.read()
    for arm in kept["arms"]:
        assert sum(arm["buckets_s"].values()) == pytest.approx(kept["days"] * 86_400)


def test_the_published_numbers_lie_in_the_simulated_bands() -> None:
    kept = scale_page.read()
    band = kept["arms"][WHOLE]["unexpected"]
    assert band["low"] < sum(cause.count for cause in LLAMA3_CAUSES) == 419 < band["high"]
    assert kept["arms"][WHOLE]["goodput"]["low"] > scale_page.PUBLISHED_GOODPUT, "more than 90 % was published"
    assert kept["arms"][0]["goodput"]["high"] < scale_page.PUBLISHED_GOODPUT
    assert kept["seeds"] >= 100


def test_every_input_says_what_it_rests_on() -> None:
    for one in INPUTS.values():
        assert re.match(r"(measured|configured|published|computed|assumed|chosen)\b", one.basis), one
        for place in re.findall(r"bench/results/\S+\.json", one.basis):
            assert (ROOT / place).exists()


def test_numbers_that_are_missing_or_of_another_schema_are_refused_with_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=AGAIN):
        scale_page.read(tmp_path / "nothing.json")
    (tmp_path / "old.json").write_text(json.dumps({"schema": 0}))
    with pytest.raises(ConfigError, match="another schema"):
        scale_page.read(tmp_path / "old.json")


def test_a_try_with_few_seeds_writes_its_own_file_and_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.scale", "--seeds", "1", "--out", str(tmp_path / "try.json")])
    monkeypatch.setattr(scale_page, "PAGE", tmp_path / "page.md")
    assert scale.main() == 0
    tried = scale_page.read(tmp_path / "try.json")
    assert (tried["seeds"], len(tried["arms"])) == (1, len(ARMS))
    assert not (tmp_path / "page.md").exists()


def test_no_seeds_are_bad_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale", "--seeds", "0"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith("--seeds = 0: a band needs runs. Use 1 or more.")
    assert "Traceback" not in done.stderr
