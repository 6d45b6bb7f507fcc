"""Each limit that the schema states is enforced, and the message names the dotted key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.commands.check import schema_text
from holdfast.config import ConfigError, RunConfig, dump, load_profile, profile_names, validate
from holdfast.config.data import MixturePart, Preparation
from holdfast.config.faults import Fault
from holdfast.config.fields import all_fields, dotted
from holdfast.config.load import PROFILES
from holdfast.config.yaml_text import parse
from tests.config.broken_values import Broken, every_broken_value, put

EVERY = every_broken_value()


def raw(profile: str = "cpu-demo") -> dict[str, Any]:
    """A valid profile as plain data."""
    plain: dict[str, Any] = parse(dump(load_profile(profile)))
    return plain


@pytest.mark.parametrize("broken", EVERY, ids=lambda broken: f"{broken.key}: {broken.limit}")
def test_a_value_beyond_a_limit_is_refused_with_its_dotted_key_alone(broken: Broken) -> None:
    with pytest.raises(ConfigError) as refusal:
        validate(put(raw(), broken.key, broken.value), "test")
    keys = [problem.key for problem in refusal.value.problems]
    # An item of a list of plain values carries its own number.
    assert keys in ([broken.key], [f"{broken.key}.0"])
    assert all(problem.why and problem.fix for problem in refusal.value.problems)


def test_the_generated_values_reach_every_field() -> None:
    reached = {broken.key for broken in EVERY}
    fields = {dotted(loc) for loc, _ in all_fields()} | {f"faults.0.{name}" for name in Fault.model_fields}
    fields |= {f"data.mixture.0.{name}" for name in MixturePart.model_fields}
    fields |= {f"data.prepare.0.{name}" for name in Preparation.model_fields}
    assert fields <= reached


@pytest.mark.parametrize("loc, field", [(dotted(loc), field) for loc, field in all_fields()])
def test_every_field_says_what_it_means(loc: str, field: Any) -> None:
    assert field.description, loc


def test_a_missing_name_is_the_only_thing_that_must_be_given() -> None:
    plain = raw()
    del plain["name"]
    plain["training"]["warmup_steps"] = 5000
    with pytest.raises(ConfigError) as refusal:
        validate(plain, "test")
    assert [problem.key for problem in refusal.value.problems] == ["name", "training.warmup_steps"]
    assert validate({"name": "x"}, "test").name == "x"


def test_a_config_cannot_be_changed() -> None:
    config = load_profile("cpu-test")
    with pytest.raises(ValidationError):
        config.name = "other"
    with pytest.raises(ValidationError):
        config.training.steps = 5


@pytest.mark.parametrize("profile", profile_names())
def test_a_profile_is_valid_and_named_like_its_file(profile: str) -> None:
    assert load_profile(profile).name == profile


@pytest.mark.parametrize("profile", profile_names())
def test_a_profile_points_editors_to_the_schema(profile: str) -> None:
    first = (PROFILES / f"{profile}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../run-config.schema.json"


def test_the_kept_schema_is_the_current_one() -> None:
    kept = (PROFILES.parent / "run-config.schema.json").read_text()
    command = ".venv/bin/holdfast check --schema > holdfast/config/run-config.schema.json"
    assert kept == schema_text(), f"it is out of date; write it anew: {command}"


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = json.loads(schema_text())
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)
    assert set(schema["properties"]) == set(RunConfig.model_fields)
