"""`holdfast plan --write`: the profile with what the plan recommends, its comments kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from holdfast.commands.plan_yaml import with_value
from holdfast.config import ConfigError, Problem, RunConfig, load_profile
from holdfast.config.load import PROFILES, validate
from holdfast.config.yaml_text import parse
from holdfast.goodput.planner import Choice, Plan, Setting, planned_batch, planned_least
from holdfast.run_directory import write_atomically, write_once


def write_plan(profile: str, overrides: Sequence[str], plan: Plan, target: Path, *, force: bool) -> None:
    """Write the profile, with the overrides and the recommendation in it.

    Raises ConfigError, and writes nothing, if there is no recommendation, if the result is not a valid profile, or if
    it does not mean what it should.
    """
    if plan.recommended is None:
        reasons = "; ".join(plan.notes)
        fix = "use a failure rate that says something of such a job, or leave --write out"
        raise ConfigError([Problem("--write", str(target), f"nothing is recommended: {reasons}", fix)], "plan")
    values = _wanted(plan.setting, plan.recommended.judged.choice, overrides)
    source = Path(profile) if profile.endswith((".yaml", ".yml")) else PROFILES / f"{profile}.yaml"
    text = _edited(source.read_text(encoding="utf-8"), load_profile(profile), values, target)
    _require(text, plan.setting.config, values, target)
    _write(target, text, force=force)


def recommended_values(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Dotted keys of a profile and what the plan says they should be."""
    values: dict[str, Any] = {
        "cluster.nodes": setting.nodes,
        "checkpoint.interval_steps": choice.shared_steps,
        "checkpoint.local.interval_steps": choice.local_steps,
        "recovery.spares": choice.spares,
        "recovery.in_process": choice.in_process,
        "recovery.in_job": choice.in_job,
        "recovery.standby": choice.standby,
    }
    if setting.nodes != setting.config.cluster.nodes:
        values["training.global_batch_size"] = planned_batch(setting)
        if setting.config.recovery.min_nodes is not None:
            values["recovery.min_nodes"] = planned_least(setting)
    if setting.has_storage:
        speed = choice.storage.mbps_per_tib
        values["storage.deployment_type"] = "SCRATCH_2" if speed is None else "PERSISTENT_2"
        values["storage.capacity_gib"] = choice.storage.capacity_gib
        values["storage.throughput_mbps_per_tib"] = speed
    return values


def _wanted(setting: Setting, choice: Choice, overrides: Sequence[str]) -> dict[str, Any]:
    """What the command line set, as the config understood it, then what is recommended."""
    plain = setting.config.model_dump(mode="json")
    given: dict[str, Any] = {}
    for override in overrides:
        # An item of a list is written with its whole list.
        parts = override.partition("=")[0].strip().split(".")
        whole = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts))
        key = ".".join(parts[:whole])
        given[key] = _at(plain, key)
    return {**given, **recommended_values(setting, choice)}


def _at(plain: Mapping[str, Any], key: str) -> Any:
    value: Any = plain
    for part in key.split("."):
        value = value[part]
    return value


def _edited(text: str, before: RunConfig, values: Mapping[str, Any], target: Path) -> str:
    """The profile's text with every value that differs from what it says."""
    plain = before.model_dump(mode="json")
    try:
        for key, value in values.items():
            if _at(plain, key) != value:
                text = with_value(text, key.split("."), value)
    except (yaml.YAMLError, KeyError) as error:
        raise _unwritable(target, f"the profile's text cannot be edited ({error})") from None
    return text


def _require(text: str, config: RunConfig, values: Mapping[str, Any], target: Path) -> None:
    """Raise unless the text is a valid profile that means exactly what it should."""
    try:
        written = validate(parse(text), source=f"plan: with what is recommended, {target} would not be a valid profile")
    except yaml.YAMLError as error:
        raise _unwritable(target, f"the edited text is not YAML ({' '.join(str(error).split())})") from None
    expected = config.model_dump(mode="json")
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (_at(expected, section) if section else expected)[name] = value
    if written.model_dump(mode="json") != expected:
        raise _unwritable(target, "editing the profile's text would change more than is meant, as with an anchor")


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        if force:
            write_atomically(target, text)
        elif not write_once(target, text):
            fix = "name a new file, or add --force to replace it"
            raise ConfigError([Problem("--write", str(target), "it exists", fix)], "plan")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError([Problem("--write", str(target), why, "name a file in a writable folder")], "plan") from None


def _unwritable(target: Path, why: str) -> ConfigError:
    fix = "change the profile by hand: the plan's table says what to"
    return ConfigError([Problem("--write", str(target), why, fix)], "plan")
