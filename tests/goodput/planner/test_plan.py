"""Plans as a whole: their JSON, their rows, and what they say where the model ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.config import ConfigError
from holdfast.config.fsx import tier_of
from holdfast.goodput.planner import document, doublings, plan_for
from holdfast.goodput.planner.judge import SEEDS, simulated
from tests.goodput.planner.jobs import setting

CHOICE = {
    *("shared_interval_steps", "shared_interval_s", "local_interval_steps", "local_interval_s", "spares", "in_process"),
    *("in_job", "standby", "storage", "background_write_s"),
}


def test_the_json_of_a_plan_has_these_keys_and_no_others() -> None:
    found = json.loads(json.dumps(document([plan_for(setting())])))
    assert found.keys() == {
        *("schema", "profile", "failure_rate", "plans", "inputs", "inputs_kept_at_default"),
    }
    plan = found["plans"][0]
    assert plan.keys() == {"nodes", "failures_per_day", "configured", "recommended", "changes", "notes"}
    for outlook in (plan["configured"], plan["recommended"]):
        assert outlook.keys() == {"choice", "goodput", "how", "reasons", "band", "cost_per_month"}
        assert outlook["choice"].keys() == CHOICE
        assert outlook["choice"]["storage"].keys() == {"deployment_type", "capacity_gib", "throughput_mbps_per_tib"}
        assert outlook["band"].keys() == {"low", "median", "high", "mean", "count", "days"}
        assert outlook["cost_per_month"].keys() == {"lost_gpu_hours", "lost_usd", "spares_usd", "storage_usd"}
    keys = {"change", "choice", "goodput", "how", "reasons", "gain", "band", "saved_gpu_hours_per_month"}
    assert all(change.keys() == keys | {"saved_usd_per_month"} for change in plan["changes"])
    assert all(change["band"].keys() == plan["configured"]["band"].keys() for change in plan["changes"])
    assert all(one.keys() == {"value", "basis"} for one in found["inputs"].values())


def test_a_plan_has_a_row_for_each_single_change() -> None:
    names = " | ".join(change.name for change in plan_for(setting()).changes)
    for part in ("best intervals", "save every 25 steps", "save every 100 steps", "a local tier", "one spare more",
                 "one spare less", "in_process on", "in_job off", "standby off", "file system",
                 "all that"):  # fmt: skip
        assert part in names


def test_gains_are_differences_of_numbers_that_came_about_in_the_same_way() -> None:
    plan = plan_for(setting())
    base = plan.configured.judged
    for change in plan.changes:
        if change.judged.how == base.how:
            assert change.judged.goodput is not None and base.goodput is not None
            assert change.gain == pytest.approx(change.judged.goodput - base.goodput, abs=1e-12)


def test_the_band_holds_nine_of_ten_seeds_and_the_expected_goodput_lies_near_it() -> None:
    outlook = plan_for(setting(nodes=256), with_changes=False).recommended
    assert outlook is not None and outlook.simulated is not None and outlook.judged.goodput is not None
    spread = outlook.simulated.goodput
    assert spread.count == SEEDS and spread.low < spread.median < spread.high
    assert spread.low - 0.005 < outlook.judged.goodput < spread.high + 0.005


def test_each_change_has_the_band_of_its_own_choice() -> None:
    one = setting("cpu-demo")
    plan = plan_for(one)
    assert plan.configured.simulated is not None
    for change in plan.changes[:3]:
        assert change.simulated == simulated(one, change.judged.choice)
    best = plan.changes[0]
    assert best.name.startswith("best intervals") and best.simulated is not None
    assert best.simulated.goodput.low > plan.configured.simulated.goodput.high


def test_a_change_saves_the_hours_of_which_its_dollars_are_the_price() -> None:
    one = setting("llama3-8b-p5x8", "cost.node_hourly_usd=10")
    compared = [change for change in plan_for(one).changes if change.judged.choice.storage == tier_of(one.config)]
    assert len(compared) > 5
    for change in compared:
        storage = tier_of(one.config).monthly_usd
        assert change.saved_gpu_hours is not None and change.saved_usd is not None
        assert change.judged.goodput is not None and change.gain is not None
        of_storage = storage - storage * (change.judged.goodput - change.gain) / change.judged.goodput
        assert change.saved_usd == pytest.approx(10 / 8 * change.saved_gpu_hours + of_storage, abs=1e-6)


def test_where_the_rate_says_nothing_of_such_a_job_there_is_no_number_and_the_reason() -> None:
    plan = plan_for(setting(rate="rsc1", nodes=64))
    assert plan.recommended is None and plan.changes == ()
    assert plan.configured.judged.goodput is None and plan.configured.cost is None
    assert "node hardware alone" in plan.notes[0]
    assert plan_for(setting(rate="rsc1", nodes=256), with_changes=False).recommended is not None


def test_beyond_the_closed_form_the_number_is_simulated_and_says_so() -> None:
    plan = plan_for(setting(rate="3000", nodes=256), with_changes=False)
    judged = plan.configured.judged
    assert judged.how == "simulated" and "simulate instead" in " ".join(judged.reasons)


def test_a_job_that_never_recovers_has_no_number() -> None:
    one = setting("llama3-8b-p5x8", "recovery.spares=0", rate="100000", nodes=1024)
    plan = plan_for(one, with_changes=False)
    goodput = plan.configured.judged.goodput
    assert goodput is None or goodput < 0.01


def test_a_range_of_nodes_is_its_doublings_with_both_ends() -> None:
    assert doublings(2, 2048) == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert doublings(3, 20) == [3, 6, 12, 20]
    assert doublings(16, 16) == [16]


@pytest.mark.parametrize(("first", "last"), [(0, 4), (4, 2), (2, 4096)])
def test_a_range_that_is_none_is_refused(first: int, last: int) -> None:
    with pytest.raises(ConfigError, match=r"--nodes = .*: a range is FIRST\.\.LAST"):
        doublings(first, last)


def test_a_profile_that_saves_nothing_is_refused() -> None:
    one = setting("cpu-demo")
    config = one.config.model_copy(update={"checkpoint": one.config.checkpoint.model_copy(update={"mode": "off"})})
    with pytest.raises(ConfigError, match=r"checkpoint\.mode = 'off'"):
        plan_for(replace(one, config=config))


def test_a_profile_that_had_to_be_simulated_is_compared_with_simulated_changes_only() -> None:
    """Its saves wait for one another; with twice the file system the closed form would hold again."""
    plan = plan_for(setting("llama3-8b-p5x2"))
    assert plan.configured.judged.how == "simulated"
    assert {change.judged.how for change in plan.changes} == {"simulated"}
