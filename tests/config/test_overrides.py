"""`--set` values are text and are parsed by the type of the field (case-27: "false" acted as true)."""

from __future__ import annotations

import pytest

from holdfast.config import ConfigError, load_profile


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        load_profile("cpu-test", overrides)
    return [str(problem) for problem in refusal.value.problems]


@pytest.mark.parametrize("text, value", [("false", False), ("true", True), ("False", False), ("0", False), ("1", True)])
def test_a_switch_given_as_text_is_that_switch(text: str, value: bool) -> None:
    config = load_profile("cpu-demo", [f"recovery.in_process={text}"])
    assert config.recovery.in_process is value
    assert config == load_profile("cpu-demo", [f"recovery={{in_process: {str(value).lower()}}}"])


def test_numbers_given_as_text_are_those_numbers() -> None:
    config = load_profile("cpu-test", ["cluster.nodes=4", "training.learning_rate=1e-4", "training.clip_norm=2"])
    assert (config.cluster.nodes, config.training.learning_rate, config.training.clip_norm) == (4, 1e-4, 2.0)


@pytest.mark.parametrize("text", ["maybe", "4.5", "0", "-2", "", "true", "0x4", "nan", "1e400"])
def test_a_node_count_that_is_none_is_refused_with_its_key(text: str) -> None:
    (problem,) = problems(f"cluster.nodes={text}")
    assert problem.startswith(f"cluster.nodes = {text!r}: ")


@pytest.mark.parametrize("text", ["maybe", "4.5", "2", "", "none"])
def test_a_switch_that_is_neither_is_refused_with_its_key(text: str) -> None:
    (problem,) = problems(f"recovery.in_process={text}")
    assert problem.startswith(f"recovery.in_process = {text!r}: it should be true or false")


def test_an_unknown_key_is_refused_and_the_nearest_is_proposed() -> None:
    assert problems("cluster.nodez=3") == [
        "cluster.nodez = '3': there is no such key. Did you mean cluster.nodes?",
    ]
    (problem,) = problems("clutter.nodes=3")
    assert problem.startswith("clutter = {'nodes': '3'}: there is no such key. Did you mean cluster?")


@pytest.mark.parametrize("text", ["nonsense", "=3", " =3"])
def test_what_is_not_key_and_value_is_refused_with_an_example(text: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(
        f"--set = {text!r}: it is not key=value. Write it like --set checkpoint.interval_steps=50"
    )


def test_null_means_null_only_where_a_field_may_be_null() -> None:
    assert load_profile("cpu-test", ["data.limit_mib=null"]).data.limit_mib is None
    assert load_profile("cpu-test", ["reliability.failure_rate=none"]).reliability.failure_rate == "none"


def test_off_is_a_word_and_not_a_switch() -> None:
    assert load_profile("cpu-test", ["checkpoint.mode=off"]).checkpoint.mode == "off"
    assert load_profile("cpu-test", ["checkpoint={mode: off}"]).checkpoint.mode == "off"


def test_lists_are_written_as_yaml_and_their_items_can_be_reached() -> None:
    faults = "faults=[{kind: hang, rank: 1, step: 5}, {kind: exception, step: 7}]"
    config = load_profile("cpu-test", [faults, "faults.1.rank=1", "data.path=[a.txt, b c.txt]"])
    assert [fault.id for fault in config.faults] == ["hang-rank1-step5", "exception-rank1-step7"]
    assert config.data.path == ("a.txt", "b c.txt")


def test_a_list_with_a_date_that_is_none_is_refused_with_its_key() -> None:
    (problem,) = problems("data.path=[2026-99-01]")
    assert problem.startswith("data.path = '[2026-99-01]': it should be a list")


def test_a_key_that_leads_nowhere_is_refused() -> None:
    assert problems("cluster.nodes.extra=1")[0].startswith("cluster.nodes.extra = '1': cluster.nodes is not a section")
    assert problems("faults.0.rank=1")[0].startswith("faults.0.rank = '1': faults has 0 items")


def test_a_value_may_contain_an_equals_sign() -> None:
    assert load_profile("cpu-test", ["image=registry/x@sha256:a=b"]).image == "registry/x@sha256:a=b"


def test_a_later_override_wins() -> None:
    assert load_profile("cpu-test", ["training.steps=30", "training.steps=40"]).training.steps == 40
