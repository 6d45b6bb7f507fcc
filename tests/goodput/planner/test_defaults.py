"""Every duration says what it rests on, and what is called measured is what the kept files say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

import pytest

from holdfast.config import load_profile, profile_names
from holdfast.config.failure_rates import FAULT_KINDS
from holdfast.goodput.planner import default_inputs
from holdfast.goodput.planner.defaults import DEMO_S, H200_S
from holdfast.goodput.planner.inputs import ASSUMED, COMPUTED, CONFIGURED, CURED_BY, MEASURED, PUBLISHED, cure_name
from tests.goodput.planner.jobs import setting

RESULTS = Path(__file__).parents[3] / "bench" / "results"
WORDS = (ASSUMED, COMPUTED, CONFIGURED, MEASURED, PUBLISHED)


@pytest.mark.parametrize("profile", profile_names())
def test_every_input_is_a_number_with_a_basis(profile: str) -> None:
    config = load_profile(profile)
    inputs = default_inputs(config, config.cluster.nodes)
    wrong = [
        name for name, one in inputs.by_name.items() if not one.basis.startswith(WORDS) or not 0 <= one.value < math.inf
    ]
    assert wrong == []
    cures = {cure_name(kind, layer, f"{what}_s") for kind in CURED_BY for layer in CURED_BY[kind] for what in WHAT}
    assert cures <= inputs.by_name.keys()


WHAT = ("detection", "restart")


def test_every_kind_of_fault_has_a_layer_that_cures_it() -> None:
    assert CURED_BY.keys() == FAULT_KINDS.keys()
    assert all(layers[-1] == "node" for layers in CURED_BY.values())


def test_seconds_called_measured_on_gpus_are_those_of_the_kept_file() -> None:
    rows = json.loads((RESULTS / "h200x2" / "checkpoint.json").read_text(encoding="utf-8"))["rows"]
    ours = next(row for row in rows if row["method"] == "holdfast")
    measured = {"blocked": ours["blocked_s"], "hidden": max(0.0, ours["hidden_s"]), "background": ours["background_s"]}
    assert {part: pytest.approx(seconds, rel=0.1) for part, seconds in measured.items()} == H200_S


def test_seconds_called_measured_by_the_demo_are_those_of_the_kept_file_but_for_the_machine() -> None:
    """A busier machine measures another number of the same size: within a factor of 3, or 20 ms."""
    kept = json.loads((RESULTS / "cpu" / "demo.json").read_text(encoding="utf-8"))
    saves, broken = kept["clean"]["checkpoints"], {one["kind"]: one for one in kept["broken"]["recoveries"]}
    in_process = broken["exception"]["breakdown"]
    measured = {
        "blocked": saves["blocked_s"]["median"],
        "hidden": fmean([saves["hidden_s"]["median"], saves["hidden_s"]["max"]]) / 2,
        "persist": saves["persist_s"]["median"],
        "restore": fmean(one["breakdown"]["restored"] for one in broken.values()),
        "dead": broken["rank_sigkill"]["detected_s"],
        "in_process": sum(in_process[part] or 0.0 for part in ("stopped", "started", "group", "model")),
        "init": kept["clean"]["buckets"]["init"],
        "shutdown": kept["clean"]["buckets"]["other"],
    }
    assert measured.keys() == DEMO_S.keys()
    far = [
        part
        for part, seconds in measured.items()
        if not (DEMO_S[part] / 3 < seconds < DEMO_S[part] * 3 or abs(DEMO_S[part] - seconds) < 0.02)
    ]
    assert far == []


def test_the_background_write_of_a_cluster_is_the_checkpoint_at_the_speed_of_its_file_system() -> None:
    inputs = setting("llama3-8b-p5x2").inputs
    # 8.03e9 parameters x 12 bytes at 1200 GiB / 1024 x 200 MB/s.
    assert inputs["shared.background_s"] == pytest.approx(8_030_261_248 * 12 / (1200 / 1024 * 200e6))


def test_a_hang_is_noticed_when_the_configured_limit_says() -> None:
    inputs = setting("llama3-8b-p5x2", "recovery.step_section_timeout_s=77").inputs
    assert inputs["hang.in_job.detection_s"] == 77
    assert inputs["exception.in_job.detection_s"] < 1


def test_without_a_copy_on_a_neighbour_a_lost_node_takes_its_checkpoints_along() -> None:
    one = setting("llama3-8b-p5x8", "checkpoint.local.replicate=false")
    assert one.inputs["local.outlives_node"] == 0
    assert setting("llama3-8b-p5x8").inputs["local.outlives_node"] > 0.9


def test_a_step_without_an_expected_time_is_computed_from_its_operations() -> None:
    one = setting(
        "llama3-8b-p5x2", "training.expected_step_s=null", "checkpoint.mode=sync", "storage.accept_slow_writes=null"
    )
    # 16 x 2048 tokens x about 6 x 8e9 operations on 16 GPUs at 40 % of 989 TFLOP/s.
    assert one.inputs["step_s"] == pytest.approx(16 * 2048 * 6 * 8e9 / (16 * 0.4 * 989.4e12), rel=0.15)
