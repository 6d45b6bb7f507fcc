"""Properties over random input: a broken value is named, nothing else is blamed, and no input is a stack trace."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.config import ConfigError, RunConfig, dump, load_file, load_profile, profile_names, validate
from holdfast.config.yaml_text import parse
from tests.config.broken_values import every_broken_value, put

PROFILES = {name: parse(dump(load_profile(name))) for name in profile_names()}
BROKEN = every_broken_value()
LISTS = ("faults", "data.mixture", "data.prepare")
"""Lists of sections: one that is broken as a whole has no items to break."""

profiles = st.sampled_from(profile_names())
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def keys_refused(raw: dict[str, Any]) -> list[str]:
    try:
        validate(raw, "test")
    except ConfigError as error:
        assert str(error)
        return [problem.key for problem in error.problems]
    return []


@given(profiles, st.sampled_from(BROKEN))
def test_a_single_broken_value_in_any_profile_is_the_only_thing_refused(profile: str, broken: Any) -> None:
    keys = keys_refused(put(copy.deepcopy(PROFILES[profile]), broken.key, broken.value))
    assert keys in ([broken.key], [f"{broken.key}.0"])


@given(profiles, st.lists(st.sampled_from(BROKEN), min_size=2, max_size=6, unique_by=lambda broken: broken.key))
def test_several_broken_values_are_all_named(profile: str, several: list[Any]) -> None:
    raw = copy.deepcopy(PROFILES[profile])
    # A section that is broken as a whole would take its broken keys with it.
    sections = {broken.key.rpartition(".")[0] for broken in BROKEN}
    leaves = [one for one in several if "." in one.key and one.key not in sections and not one.key.startswith(LISTS)]
    for one in leaves:
        put(raw, one.key, one.value)
    keys = keys_refused(raw)
    assert {one.key for one in leaves} <= {key.removesuffix(".0") for key in keys}
    assert len(keys) == len(set(keys))


@settings(max_examples=300)
@given(profiles, st.sampled_from(sorted({broken.key for broken in BROKEN})), plain_values)
def test_any_value_anywhere_is_accepted_or_refused_but_never_a_crash(profile: str, key: str, value: Any) -> None:
    raw = put(copy.deepcopy(PROFILES[profile]), key, value)
    for refused in keys_refused(raw):
        assert refused


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(sorted(RunConfig.model_fields)), plain_values, max_size=5))
def test_any_mapping_is_accepted_or_refused_but_never_a_crash(raw: dict[str, Any]) -> None:
    keys_refused(raw)


@given(profiles, st.sampled_from(sorted({broken.key for broken in BROKEN})), st.text(max_size=30), plain_values)
def test_any_override_is_accepted_or_refused_but_never_a_crash(profile: str, key: str, text: str, value: Any) -> None:
    for override in (text, f"{text}={value}", f"{key}={text}", f"faults={yaml.safe_dump(value)}", f"{key}.{text}=1"):
        try:
            load_profile(profile, [override])
        except ConfigError as error:
            assert error.problems


@example("\x85")
@example("off")
@example("1e3")
@example("a: b # c\r\n")
@given(st.text(max_size=60))
def test_any_text_survives_the_way_through_a_file(tmp_path_factory: Any, text: str) -> None:
    config = RunConfig(name="x", image=text)
    path = Path(tmp_path_factory.getbasetemp()) / "written.yaml"
    path.write_text(dump(config))
    assert load_file(path) == config


@given(st.binary(max_size=80))
def test_any_file_is_accepted_or_refused_but_never_a_crash(tmp_path_factory: Any, content: bytes) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "any.yaml"
    path.write_bytes(content)
    try:
        load_file(path)
    except ConfigError as error:
        assert error.problems
