"""When each alert fires, judged by Prometheus' own promtool on made-up series, one sample a minute."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from holdfast.config import load_profile
from k8s.monitoring import prometheus_rule
from k8s.monitoring_alerts import alerts

REQUIRED = "HOLDFAST_REQUIRE_PROMTOOL"
"""Set to 1 where promtool was installed for these tests: then a missing one is a failure, not a skip."""
CONFIG = load_profile("cpu-test")
ONE = 'run="cpu-test",rank="0",pod="a"'
TWO = 'run="cpu-test",rank="1",pod="b"'
CONTROL = 'run="cpu-test",pod="c"'
Series = Mapping[str, str]


WITHOUT = "no promtool on this machine (Debian: apt-get install prometheus)"
judged = pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get(REQUIRED) != "1",
    reason=f"{WITHOUT}; other tests parse the rules, and CI brings one and then skips nothing",
)


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program."""
    found = shutil.which("promtool")
    assert found is not None, WITHOUT
    return found


def firing(promtool: str, folder: Path, series: Series, at: str, name: str) -> str:
    """What promtool says of the alert `name` at a time; empty if it does not fire."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(prometheus_rule(CONFIG)["spec"]))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": selector, "values": values} for selector, values in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": []}],
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    command = [promtool, "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return ""
    match = re.search(r"got:\s*\[(.*)\]", said, flags=re.DOTALL)
    assert match is not None and f'alertname="{name}"' in said, said
    return match.group(1)


def steps(per_minute: int, until: int, after: int = 600) -> dict[str, str]:
    """Two ranks that make so many steps per minute until a minute, and none after. A step takes 60 s / per_minute."""
    made = {}
    for labels in (ONE, TWO):
        end = per_minute * until
        seconds = f"0+60x{until} {60 * until}x{after}"
        made[f"holdfast_step_seconds_count{{{labels}}}"] = f"0+{per_minute}x{until} {end}x{after}"
        made[f"holdfast_step_seconds_sum{{{labels}}}"] = seconds
        made[f"holdfast_last_step_timestamp_seconds{{{labels}}}"] = seconds
        made[f"holdfast_step{{{labels}}}"] = f"0+{per_minute}x{until} {end}x{after}"
    return made


def crashes(first: int, every: int, count: int) -> dict[str, str]:
    """Processes of one rank, one after the other, that finish no step. Minutes: of the first, and between two."""
    made = {}
    for number in range(count):
        start = first + number * every
        labels = f'run="cpu-test",rank="0",pod="crash{number}"'
        for name, value in (("step_seconds_count", 0), ("last_step_timestamp_seconds", 60 * start)):
            made[f"holdfast_{name}{{{labels}}}"] = " ".join([*(["_"] * start), f"{value}x{every - 2}"])
    return made


def saves(commit_time: str, committed_step: str) -> dict[str, str]:
    """Rank 0 of a run that saves every 10 steps."""
    return {
        f"holdfast_save_interval_steps{{{ONE}}}": "10x600",
        f"holdfast_last_commit_timestamp_seconds{{{ONE}}}": commit_time,
        f"holdfast_committed_step{{{ONE}}}": committed_step,
    }


def world(size: int) -> dict[str, str]:
    return {f"holdfast_world_size{{{CONTROL}}}": f"{size}x600"}


def up(value: int) -> dict[str, str]:
    return {'up{run="cpu-test",container="control",pod="c"}': f"{value}x600"}


def generations(*minutes: int) -> dict[str, str]:
    """New pods, and with them new series, from each of these minutes on."""
    starts = (0, *minutes)
    return {
        f'holdfast_restarts_total{{run="cpu-test",rank="0",layer="generation",pod="{number}"}}': " ".join(
            [*(["_"] * start), f"{number}x{(starts[number + 1] if number + 1 < len(starts) else 600) - start - 2}"]
        )
        for number, start in enumerate(starts)
    }


def goodput(ratio: float, wall_s: int) -> dict[str, str]:
    return {
        f'holdfast_goodput_ratio{{{CONTROL},measure="goodput"}}': f"{ratio}x600",
        f"holdfast_wall_seconds{{{CONTROL}}}": f"{wall_s}x600",
    }


def failed(job: str, values: str, condition: str = "true") -> dict[str, str]:
    """What kube-state-metrics serves of a Job."""
    return {f'kube_job_failed{{namespace="holdfast",job_name="{job}",condition="{condition}"}}': values}


FIRES: dict[str, tuple[str, Series, str]] = {
    "the control pod's Job stays failed": ("HoldfastRunFailed", failed("cpu-test-0a1b2c3d-control-0", "1x60"), "6m"),
    "one worker's Job stays failed": ("HoldfastRunFailed", failed("cpu-test-0a1b2c3d-workers-11", "1x60"), "6m"),
    "no step for a quarter of an hour": ("HoldfastNoProgress", steps(6, until=20), "37m"),
    "processes that crash every five minutes before their first step, after a good start": (
        "HoldfastNoProgress",
        {**steps(6, until=20, after=1), **crashes(22, 5, 20)},
        "45m",
    ),
    "processes that crash every five minutes from the start on": ("HoldfastNoProgress", crashes(0, 5, 20), "25m"),
    "one rank of three is missing": ("HoldfastRanksMissing", {**steps(6, 60), **world(3)}, "16m"),
    "no rank is there at all": ("HoldfastRanksMissing", world(2), "16m"),
    "a loss that is no number from the first scrape on": (
        "HoldfastLossNotFinite",
        {f"holdfast_loss{{{ONE}}}": "NaN NaN NaN", f"holdfast_nonfinite_losses_total{{{ONE}}}": "1x60"},
        "2m",
    ),
    "an infinite loss between two scrapes": (
        "HoldfastLossNotFinite",
        {f"holdfast_loss{{{TWO}}}": "2x60", f"holdfast_nonfinite_losses_total{{{TWO}}}": "0x9 1x50"},
        "12m",
    ),
    "steps go on and nothing is committed": (
        "HoldfastCommitOverdue",
        {**steps(6, 120), **saves("0x600", "0x600")},
        "20m",
    ),
    "a save has failed": ("HoldfastSavesFail", {f"holdfast_save_failures_total{{{ONE}}}": "0x9 1x50"}, "12m"),
    "five new generations in an hour": ("HoldfastRestartsOften", generations(10, 20, 30, 40, 50), "59m"),
    "five launcher cycles in one process' place": (
        "HoldfastRestartsOften",
        {f'holdfast_restarts_total{{{ONE},layer="in_job"}}': "0x9 1x9 2x9 3x9 4x9 5x9"},
        "59m",
    ),
    "half of five hours trained": ("HoldfastGoodputLow", goodput(0.5, 18_000), "31m"),
    "the control pod does not answer": ("HoldfastMetricsDown", {**steps(6, 60), **world(2), **up(0)}, "11m"),
    "only ranks are scraped": ("HoldfastMetricsDown", steps(6, 60), "11m"),
    "no accounting since the start": (
        "HoldfastGoodputStale",
        {f"holdfast_goodput_timestamp_seconds{{{CONTROL}}}": "0x600"},
        "35m",
    ),
}
WELL = {
    **steps(6, 600),
    **saves("0+60x600", "0+6x600"),
    **world(2),
    **up(1),
    **goodput(0.97, 18_000),
    **generations(10, 100),
    **failed("cpu-test-0a1b2c3d-control-0", "1x600", condition="false"),
    f"holdfast_loss{{{ONE}}}": "2.5x600",
    f"holdfast_nonfinite_losses_total{{{ONE}}}": "0x600",
    f"holdfast_save_failures_total{{{ONE}}}": "0x600",
    f"holdfast_goodput_timestamp_seconds{{{CONTROL}}}": "0+60x600",
}
SILENT: dict[str, tuple[str, Series, str]] = {
    **{f"{name}, of a run that is well": (name, WELL, "180m") for name in (alert.name for alert in alerts(CONFIG))},
    "a Job that failed is gone, as the JobSet starts again": (
        "HoldfastRunFailed",
        failed("cpu-test-0a1b2c3d-control-0", "1x3"),
        "12m",
    ),
    "a Job of another run": ("HoldfastRunFailed", failed("cpu-test-2-0a1b2c3d-control-0", "1x60"), "30m"),
    "a Job that does well": ("HoldfastRunFailed", failed("cpu-test-0a1b2c3d-control-0", "0x60"), "30m"),
    "a restart of ten minutes": ("HoldfastNoProgress", steps(6, 20), "31m"),
    "two crashes in ten minutes": ("HoldfastNoProgress", {**steps(6, 20, after=1), **crashes(22, 5, 2)}, "33m"),
    "a start-up of ten minutes": ("HoldfastNoProgress", crashes(0, 5, 2), "10m"),
    "a rank is away for ten minutes": ("HoldfastRanksMissing", {**steps(6, 60), **world(3)}, "10m"),
    "resumed after a pause of days": (
        "HoldfastCommitOverdue",
        {**steps(1, 8), **saves("-900000x600", "0x600")},
        "8m",
    ),
    "a rank's own part fails, and rank 0 counts the save": (
        "HoldfastSavesFail",
        {f"holdfast_save_failures_total{{{TWO}}}": "0x9 1x50"},
        "12m",
    ),
    "two restarts of two layers that four ranks tell of": (
        "HoldfastRestartsOften",
        {
            f'holdfast_restarts_total{{run="cpu-test",rank="{rank}",layer="{layer}"}}': "0x9 1x9 2x60"
            for rank in range(4)
            for layer in ("in_job", "in_process")
        },
        "59m",
    ),
    "five new generations in a day": ("HoldfastRestartsOften", generations(10, 110, 210, 310, 410), "500m"),
    "a start-up that is most of the time so far": ("HoldfastGoodputLow", goodput(0.1, 600), "31m"),
}


@pytest.mark.parametrize("case", FIRES)
@judged
def test_it_fires(promtool: str, tmp_path: Path, case: str) -> None:
    name, series, at = FIRES[case]
    said = firing(promtool, tmp_path, series, at, name)
    assert 'run="cpu-test"' in said and "cpu-test" in said.partition("Annotations")[2], said
    assert "error" not in said.lower()


@pytest.mark.parametrize("case", SILENT)
@judged
def test_it_is_silent(promtool: str, tmp_path: Path, case: str) -> None:
    name, series, at = SILENT[case]
    assert firing(promtool, tmp_path, series, at, name) == ""


def test_every_alert_is_seen_to_fire() -> None:
    assert {name for name, _, _ in FIRES.values()} == {alert.name for alert in alerts(CONFIG)}
