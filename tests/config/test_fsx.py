"""Sizing of the file system: the numbers follow from AWS's published ones, and the proposal is one that passes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import ConfigError, fsx, load_profile, profile_names
from holdfast.config.fsx import Need, Tier, cheapest, need_of, tier_of
from holdfast.config.notices import notices

needs = st.builds(
    Need,
    checkpoint_bytes=st.integers(10**6, 10**13),
    kept=st.integers(1, 50),
    interval_s=st.none() | st.floats(10, 10_000),
)


def test_the_articles_file_system_is_slower_than_its_interval_and_says_so() -> None:
    config = load_profile("llama3-8b-p5x2")
    need = need_of(config)
    assert need.interval_s == 500 * 0.4
    assert need.save_s(tier_of(config)) == pytest.approx(8_030_261_248 * 12 / (1200 / 1024 * 200e6))
    (slow, scratch) = notices(config)
    assert "takes 411 s (computed" in slow and "after 200 s" in slow and "it repeats the article" in slow
    assert "not replicated" in scratch


def test_a_file_system_with_efa_says_that_the_nodes_do_not_use_it() -> None:
    efa = ["storage.fsx.efa=true", "storage.deployment_type=PERSISTENT_2", "storage.capacity_gib=4800"]
    config = load_profile("llama3-8b-p5x2", [*efa, "storage.throughput_mbps_per_tib=1000"])
    assert [line for line in notices(config) if "mounts over TCP" in line]
    assert not [line for line in notices(load_profile("llama3-8b-p5x2")) if "EFA" in line]


def test_without_a_reason_the_refusal_names_the_cheapest_tier_that_works() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_profile("llama3-8b-p5x2", ["storage.accept_slow_writes=null"])
    (problem,) = refusal.value.problems
    assert problem.key == "checkpoint.interval_steps"
    best = cheapest(need_of(load_profile("llama3-8b-p5x2")), persistent=False)
    assert best is not None and str(best) in problem.fix


def test_what_the_refusal_proposes_is_accepted() -> None:
    slow = ["storage.accept_slow_writes=null"]
    with pytest.raises(ConfigError) as refusal:
        load_profile("llama3-8b-p5x2", slow)
    fix = refusal.value.problems[0].fix
    proposed = re.findall(r"(storage\.\w+): (\w+)", fix)
    assert len(proposed) == 3
    load_profile("llama3-8b-p5x2", [*slow, *(f"{key}={value}" for key, value in proposed)])
    (steps,) = re.findall(r"save every (\d+) steps", fix)
    load_profile("llama3-8b-p5x2", [*slow, f"checkpoint.interval_steps={steps}"])


def test_only_the_articles_profile_accepts_slow_writes() -> None:
    configs = [load_profile(name) for name in profile_names()]
    assert [config.name for config in configs if config.storage.accept_slow_writes] == ["llama3-8b-p5x2"]
    assert [config.name for config in configs if config.instance.ec2 and fsx.slow_write(config)] == ["llama3-8b-p5x2"]


def test_a_synchronous_save_is_not_measured_against_the_interval() -> None:
    assert fsx.slow_write(load_profile("llama3-8b-p5x2", ["checkpoint.mode=sync"])) is None


@given(needs, st.booleans(), st.booleans())
def test_the_cheapest_tier_has_room_keeps_up_and_can_be_ordered(need: Need, persistent: bool, efa: bool) -> None:
    best = cheapest(need, persistent=persistent, efa=efa)
    if best is None:
        return
    assert need.room(best) and need.in_time(best)
    assert best.capacity_gib == 1200 or best.capacity_gib % 2400 == 0
    assert best.mbps_per_tib is not None or not (persistent or efa)
    if efa:
        assert best.mbps_per_tib is not None
        assert best.capacity_gib % fsx.EFA_SIZE_STEP_GIB[best.mbps_per_tib] == 0


@given(needs)
def test_no_size_of_any_tier_that_works_is_cheaper(need: Need) -> None:
    best = cheapest(need, persistent=False)
    sizes = [1200, *range(2400, 48_001, 2400)]
    for size in sizes:
        for speed in (None, *fsx.THROUGHPUTS):
            tier = Tier(capacity_gib=size, mbps_per_tib=speed)
            if need.room(tier) and need.in_time(tier):
                assert best is not None and best.monthly_usd <= tier.monthly_usd


def test_a_save_that_no_size_can_take_in_time_has_no_tier() -> None:
    assert cheapest(Need(checkpoint_bytes=10**16, kept=1, interval_s=1.0), persistent=False) is None
