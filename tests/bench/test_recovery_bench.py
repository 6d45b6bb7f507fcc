"""The bench of recoveries: its arms are valid jobs, it goes on where it stopped, and it folds what it has."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.recovery import ARMS, KINDS, Plan, next_plan, parse
from bench.recovery_records import FAILURES, Sample, WorkFile, fold
from holdfast.goodput.failures import PARTS

GPUS = ["cluster.ranks_per_node=2"]


def options(tmp_path: Path, *words: str) -> argparse.Namespace:
    return parse(["--raw", str(tmp_path / "raw.jsonl"), *words])


def sample(arm: str = "holdfast", kind: str = "hang", seconds: float = 1.0, layer: str = "in_job") -> Sample:
    return Sample(arm, kind, kind, layer, seconds, dict.fromkeys(PARTS, 0.5) | {"noticed": None})


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("profile", "sets"), [("cpu-demo", []), ("gpu-local", GPUS)])
def test_every_arm_is_a_job_that_the_config_accepts_and_differs_only_in_recovery(
    arm: str, profile: str, sets: list[str]
) -> None:
    plan = Plan(arm, KINDS * 2)
    config, full = plan.config(profile, sets), Plan("holdfast", KINDS * 2).config(profile, sets)
    assert config.model_copy(update={"recovery": full.recovery}) == full
    assert len({fault.step for fault in config.faults}) == 6 and {fault.rank for fault in config.faults} == {0, 1}
    assert max(fault.step for fault in config.faults) < config.training.steps
    assert config.recovery.standby is (arm == "holdfast")


def test_arms_take_turns_until_each_has_enough_of_every_kind(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--arms", "holdfast", "no-standby", "--count", "3")
    work = WorkFile(arguments.raw, [])
    order = []
    while (plan := next_plan(work, arguments)) is not None:
        order.append((plan.arm, len(plan.kinds)))
        for kind in plan.kinds:
            work.add(sample(plan.arm, kind))
    assert order == [("holdfast", 6), ("no-standby", 6), ("holdfast", 3), ("no-standby", 3)]


def test_a_bench_that_was_killed_goes_on_and_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--arms", "holdfast", "--kinds", "hang", "--count", "2", "--per-job", "5")
    work = WorkFile(arguments.raw, [])
    work.add(sample(seconds=1.0))
    work.add(sample(seconds=2.0))
    arguments.raw.write_bytes(arguments.raw.read_bytes()[:-20])
    work = WorkFile(arguments.raw, [])
    assert next_plan(work, arguments) == Plan("holdfast", ("hang",))
    work.add(sample(seconds=3.0))
    again = WorkFile(arguments.raw, [])
    assert [found.seconds for found in again.samples] == [1.0, 3.0]
    assert next_plan(again, arguments) is None


def test_raw_files_of_former_calls_count_and_are_not_written(tmp_path: Path) -> None:
    former = tmp_path / "former.jsonl"
    WorkFile(former, []).add(sample(seconds=4.0))
    before = former.read_bytes()
    work = WorkFile(tmp_path / "raw.jsonl", [former])
    work.add(sample(seconds=6.0))
    assert work.count("holdfast", "hang") == 2 and former.read_bytes() == before


def test_an_arm_whose_jobs_fail_is_given_up(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--arms", "holdfast")
    work = WorkFile(arguments.raw, [])
    for _ in range(FAILURES):
        assert next_plan(work, arguments) is not None
        work.fail("holdfast")
    assert next_plan(work, arguments) is None


def test_rows_are_medians_and_keep_what_another_layer_cured_apart() -> None:
    samples = [sample(seconds=seconds) for seconds in (1.0, 9.0, 2.0)] + [sample(layer="node", seconds=30.0)]
    in_job, node = fold(samples)
    assert (in_job["layer"], in_job["n"], in_job["median_s"], in_job["all_s"]) == ("in_job", 3, 2.0, [1.0, 2.0, 9.0])
    assert tuple(in_job["breakdown_s"]) == PARTS
    assert in_job["breakdown_s"]["noticed"] is None and in_job["breakdown_s"]["started"] == 0.5
    assert (node["layer"], node["n"], node["median_s"]) == ("node", 1, 30.0)


@pytest.mark.parametrize("words", [["--count", "0"], ["--arms", "nothing"], ["--per-job", "-1"]])
def test_wrong_words_are_one_message_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err
