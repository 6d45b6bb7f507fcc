"""What is recommended is the best in the model, and moves the right way when the world gets worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import fsx
from holdfast.config.failure_rates import FailureRate
from holdfast.goodput.planner.judge import computed, judge
from holdfast.goodput.planner.money import price_of_work
from holdfast.goodput.planner.recommend import WORTH, file_systems, recommend, tuned
from holdfast.goodput.planner.setting import Choice, Setting, configured, durations_of, switched
from tests.goodput.planner.jobs import scaled_rate, setting

LONG = ("training.steps=10000000", "checkpoint.keep_every_steps=null")


def goodput(one: Setting, choice: Choice) -> float:
    number, why = computed(one, choice)
    assert number is not None, why
    return number


@pytest.mark.parametrize("nodes", [8, 64, 512, 2048])
def test_neighbours_of_the_recommended_interval_are_not_better(nodes: int) -> None:
    one = setting("llama3-8b-p5x8", *LONG, nodes=nodes)
    choice, note = tuned(one, configured(one))
    assert note == ""
    best = goodput(one, choice)
    floor_s = durations_of(one, choice).tiers[-1].save.lag_s
    for steps in (choice.shared_steps - 1, choice.shared_steps + 1, choice.shared_steps * 2, choice.shared_steps // 2):
        if steps * one.inputs["step_s"] >= floor_s:
            # Steps are whole: one step off may round the other way.
            assert goodput(one, replace(choice, shared_steps=steps)) <= best + 1e-6


def test_with_two_tiers_neighbours_are_not_better_either() -> None:
    one = setting("llama3-8b-p5x8", *LONG, nodes=512)
    choice, note = tuned(one, replace(configured(one), local_steps=1))
    assert note == "" and choice.local_steps is not None
    best, ratio = goodput(one, choice), choice.shared_steps // choice.local_steps
    floor_s = durations_of(one, choice).tiers[-1].save.lag_s
    for local, times in ((choice.local_steps * 2, ratio), (choice.local_steps, ratio * 2), (choice.local_steps * 3, 1)):
        tried = replace(choice, local_steps=local, shared_steps=local * times)
        if tried.shared_steps * one.inputs["step_s"] >= floor_s:
            assert goodput(one, tried) <= best + 1e-6


@given(factor=st.floats(1.05, 20.0), nodes=st.sampled_from([4, 32, 256]))
@settings(max_examples=25, deadline=None)
def test_a_higher_failure_rate_never_lengthens_an_interval(factor: float, nodes: int) -> None:
    low = setting("llama3-8b-p5x8", *LONG, nodes=nodes)
    high = setting("llama3-8b-p5x8", *LONG, nodes=nodes, rate=scaled_rate(factor))
    assert tuned(high, configured(high))[0].shared_steps <= tuned(low, configured(low))[0].shared_steps


@given(spares=st.integers(0, 20), nodes=st.sampled_from([8, 128, 1024]), factor=st.floats(0.2, 2.0))
@settings(max_examples=25, deadline=None)
def test_a_spare_never_lowers_goodput(spares: int, nodes: int, factor: float) -> None:
    one = setting("llama3-8b-p5x8", "checkpoint.interval_steps=20", *LONG, nodes=nodes, rate=scaled_rate(factor))
    choice = replace(configured(one), spares=spares)
    more = judge(one, replace(choice, spares=spares + 1), by_simulation=False)
    fewer = judge(one, choice, by_simulation=False)
    if more.how == fewer.how == "computed":
        assert more.goodput is not None and fewer.goodput is not None
        assert more.goodput >= fewer.goodput - 1e-12


@pytest.mark.parametrize("nodes", [8, 256])
def test_one_spare_more_or_less_makes_the_same_work_dearer(nodes: int) -> None:
    one = setting("llama3-8b-p5x8", nodes=nodes)
    choice = recommend(one).choice

    def price(spares: int) -> float:
        tried = replace(choice, spares=spares)
        return price_of_work(one, tried, goodput(one, tried))

    assert price(choice.spares) <= price(choice.spares + 1)
    assert choice.spares == 0 or price(choice.spares) <= price(choice.spares - 1)


def test_free_nodes_are_kept_as_spares_and_dear_ones_are_not() -> None:
    """At next to nothing an hour storage is what a month costs, and idle nodes are as good as free."""
    free = setting("llama3-8b-p5x8", "cost.node_hourly_usd=0.0001", nodes=256)
    dear = setting("llama3-8b-p5x8", "cost.node_hourly_usd=100", nodes=256)
    assert recommend(free).choice.spares > recommend(dear).choice.spares


@pytest.mark.parametrize(("nodes", "factor"), [(8, 1), (2048, 1), (2048, 4)])
def test_every_layer_that_is_on_gains_what_makes_it_worth_it_and_those_that_are_off_do_not(
    nodes: int, factor: float
) -> None:
    one = setting("llama3-8b-p5x8", nodes=nodes, rate=scaled_rate(factor))
    choice = recommend(one).choice
    for switch in ("in_process", "standby"):
        gain = goodput(one, switched(choice, switch, True)) - goodput(one, switched(choice, switch, False))
        assert (gain >= WORTH) is getattr(choice, switch)


def test_a_file_system_is_chosen_with_room_for_what_is_kept_and_no_interval_shorter_than_its_write() -> None:
    one = setting("llama3-8b-p5x2")
    choice = recommend(one).choice
    need = fsx.need_of(one.config)
    assert all(need.room(tier) for tier in file_systems(one))
    save = durations_of(one, choice).tiers[-1].save
    assert choice.shared_steps * one.inputs["step_s"] >= save.lag_s - one.inputs["step_s"]


def test_a_file_system_that_would_let_every_save_fail_is_not_chosen() -> None:
    """2400 GiB would be cheapest, and take 41 s."""
    one = setting("llama3-8b-p5x8", "checkpoint.persist_timeout_s=30")
    choice = recommend(one).choice
    assert durations_of(one, choice).tiers[-1].save.background_s < 30
    assert durations_of(one, recommend(setting("llama3-8b-p5x8")).choice).tiers[-1].save.background_s > 30


def test_without_failures_no_interval_is_best_and_the_configured_one_stays() -> None:
    one = setting("llama3-8b-p5x8", rate="none")
    choice, note = tuned(one, configured(one))
    assert choice.shared_steps == one.config.checkpoint.interval_steps
    assert "no interval is the best one" in note


def test_an_interval_is_no_longer_than_the_run() -> None:
    one = setting("llama3-8b-p5x8", "training.steps=30", "training.warmup_steps=1", "checkpoint.keep_every_steps=null")
    assert tuned(one, configured(one))[0].shared_steps <= 30


def test_a_profile_whose_saves_wait_for_one_another_is_simulated() -> None:
    """The article's set-up: 411 s of writing, and a save every 200 s."""
    one = setting("llama3-8b-p5x2")
    judged = judge(one, configured(one))
    assert judged.how == "simulated" and "wait for the one before" in judged.reasons[0]
    assert judged.goodput is not None and judged.goodput < 0.6


def test_a_job_that_fails_faster_than_anything_ends_keeps_its_intervals_and_is_told_why() -> None:
    one = setting(rate=FailureRate(name="absurd", hardware_per_node_day=100.0, software_per_node_day=1e3, nodes=2048,
                                   source="a test"), nodes=2048)  # fmt: skip
    choice, note = tuned(one, configured(one))
    assert choice == configured(one) and "it fails so much faster than it recovers" in note
    number, why = computed(one, choice)
    assert number is None and "it fails so much faster than it recovers" in " ".join(why)
