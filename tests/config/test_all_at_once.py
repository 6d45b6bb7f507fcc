"""Every problem is shown at once, and none that only follows from a default standing in for a broken value."""

from __future__ import annotations

import pytest

from holdfast.config import ConfigError, load_profile


def refused(profile: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        load_profile(profile, overrides)
    return [problem.key for problem in refusal.value.problems]


def test_field_problems_and_problems_between_fields_come_together() -> None:
    keys = refused(
        "cpu-test", "nonsense", "training.learning_rate=fast", "model.kv_heads=3", "storage.capacity_gib=1300"
    )
    assert keys == ["--set", "training.learning_rate", "model.kv_heads", "storage.capacity_gib"]


def test_a_broken_item_of_a_list_does_not_hide_the_others_or_change_their_numbers() -> None:
    faults = (
        "faults=[{kind: hang, rank: 9, step: 1}, {kind: typo, step: 1}, {kind: hang, step: 99}, {kind: hang, step: 1}]"
    )
    assert refused("cpu-test", faults) == ["faults.1.kind", "faults.0.rank", "faults.2.step"]


def test_two_problems_of_one_item_are_both_shown() -> None:
    assert refused("cpu-test", "faults=[{kind: typo, step: x}]") == ["faults.0.kind", "faults.0.step"]


def test_a_broken_section_does_not_hide_the_others() -> None:
    assert refused("cpu-test", "checkpoint=5", "model.kv_heads=3") == ["checkpoint", "model.kv_heads"]


def test_nothing_is_said_about_a_field_whose_counterpart_is_broken() -> None:
    # With training.steps at its default of 60, a warm-up of 100 would look wrong.
    assert refused("cpu-test", "training.steps=many", "training.warmup_steps=100") == ["training.steps"]


def test_a_message_carries_key_value_reason_and_what_to_write() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_profile("cpu-test", ["training.global_batch_size=10"])
    assert str(refusal.value) == (
        "profile cpu-test: 1 problem\n"
        "  - training.global_batch_size = 10: cluster.nodes=2 x cluster.ranks_per_node=1 x training.micro_batch_size=2"
        " = 4 must divide it. Use a multiple of 4."
    )


def test_a_list_with_too_few_items_and_a_broken_one_is_named_by_the_broken_item_alone() -> None:
    assert refused("llama3-8b-p5x2", "aws.zones=[us-west-2b, 5]", "model.kv_heads=3") == [
        "aws.zones.1",
        "model.kv_heads",
    ]


def test_nothing_is_said_about_a_list_of_which_an_item_is_broken() -> None:
    overrides = ["aws.endpoint=allow_listed", "aws.allowed_cidrs=[everyone]"]
    assert refused("llama3-8b-p5x2", *overrides) == ["aws.allowed_cidrs.0"]
