"""Sizes of an elastic job: off by default, only those over which the batch divides, and limits in their order."""

from __future__ import annotations

import pytest

from holdfast.config import ConfigError, load_profile, sizing
from holdfast.config.notices import notices

FOUR = ["cluster.nodes=4", "training.global_batch_size=16", "recovery.shrink_after_s=60"]


def problems(*sets: str) -> str:
    """What is wrong with cpu-test of four nodes."""
    with pytest.raises(ConfigError) as caught:
        load_profile("cpu-test", [*FOUR, *sets])
    return str(caught.value)


def test_a_job_is_not_elastic_unless_it_says_so() -> None:
    config = load_profile("cpu-test", FOUR)
    assert not config.elastic and config.sizes == (4,) and config.min_nodes == 4
    same = load_profile("cpu-test", [*FOUR, "recovery.min_nodes=4"])
    assert not same.elastic and same.sizes == (4,)


def test_sizes_are_those_over_which_the_global_batch_divides() -> None:
    config = load_profile("cpu-test", [*FOUR, "recovery.min_nodes=1"])
    assert config.elastic and config.sizes == (1, 2, 4)
    assert [config.accumulation_at(size) for size in config.sizes] == [8, 4, 2]
    per_step = {size * config.accumulation_at(size) * config.training.micro_batch_size for size in config.sizes}
    assert per_step == {config.training.global_batch_size}


def test_a_smallest_size_that_does_not_divide_is_refused_with_those_that_do() -> None:
    text = problems("recovery.min_nodes=3")
    assert (
        "recovery.min_nodes = 3: 3 nodes x cluster.ranks_per_node=1 x training.micro_batch_size=2 = 6 must divide"
        in text
    )
    assert "Use one of the sizes that work: 1, 2, 4." in text


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["recovery.min_nodes=5"], "the job has cluster.nodes=4. Use at most 4, or null."),
        (["recovery.min_nodes=2", "recovery.in_job=false"], "recovery.in_job is off"),
        (["recovery.min_nodes=2", "checkpoint.mode=off"], "checkpoint.mode=off leaves nothing to go on from"),
        (["recovery.min_nodes=2", "recovery.shrink_after_s=120"], "recovery.join_timeout_s=120 must exceed it"),
        (["recovery.min_nodes=2", "recovery.shrink_after_s=5"], "recovery.shrink_after_s = 5.0: who is there is known"),
        (["recovery.min_nodes=2", "recovery.grow_after_s=5"], "recovery.grow_after_s = 5.0: who is there is known"),
    ],
)
def test_what_cannot_work_is_refused(sets: list[str], says: str) -> None:
    assert says in problems(*sets)


def test_memory_is_counted_at_the_smallest_size() -> None:
    whole, small = load_profile("cpu-test", FOUR), load_profile("cpu-test", [*FOUR, "recovery.min_nodes=2"])
    assert sizing.part_bytes_per_node(small) == pytest.approx(2 * sizing.part_bytes_per_node(whole), abs=1)


def test_sizes_between_that_cannot_be_used_are_known_before_they_are_paid_for() -> None:
    (notice,) = [
        line for line in notices(load_profile("llama3-8b-p5x8", ["recovery.min_nodes=4"])) if "min_nodes" in line
    ]
    assert "cannot be spread over 5 or 6 or 7 nodes; the job runs with 4 or 8" in notice
