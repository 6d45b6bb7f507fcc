"""Profile (YAML) + overrides -> RunConfig. Finds every problem at once; no stack trace for bad input."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.config import overrides as command_line
from holdfast.config.checks import cross_problems
from holdfast.config.fields import Location, dotted
from holdfast.config.problems import ConfigError, Problem
from holdfast.config.schema import RunConfig
from holdfast.config.wording import problem_from
from holdfast.config.yaml_text import read_mapping

PROFILES = Path(__file__).parent / "profiles"


def profile_names() -> list[str]:
    """Names of the profiles that come with Holdfast."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(profile: str, overrides: Iterable[str] = ()) -> RunConfig:
    """The config of a named profile, or of a YAML file, with `key=value` overrides applied.

    Raises ConfigError naming every problem.
    """
    raw = _read_profile(profile)
    problems = command_line.apply(raw, overrides)
    return validate(raw, source=f"profile {profile}", problems=problems)


def load_file(path: Path) -> RunConfig:
    """The config in a run.yaml, as the supervisor and the trainer read it. Raises ConfigError."""
    return validate(read_mapping(path, "config file"), source=str(path))


def validate(raw: Mapping[str, Any], source: str, problems: Iterable[Problem] = ()) -> RunConfig:
    """A RunConfig from plain data.

    Raises ConfigError with the given problems, those of single fields, and those between fields: a broken field does
    not hide what else is wrong.
    """
    found = list(problems)
    plain = copy.deepcopy(dict(raw))
    config, entries = _build(plain)
    found += [problem_from(entry) for entry in entries if not _follows(entry, entries)]
    broken = [tuple(entry["loc"]) for entry in entries]
    if config is None:
        numbers = _remove(plain, broken)
        config, entries = _build(plain)
        if config is None:
            # A list without its broken items may be too short: its default stands in for all of it.
            follow_ups = [tuple(entry["loc"]) for entry in entries]
            broken += follow_ups
            _remove(plain, follow_ups)
            config, _ = _build(plain)
        cross = [_renumbered(problem, numbers) for problem in cross_problems(config)] if config else []
        found += [problem for problem in cross if not _rests_on(problem, broken)]
    else:
        found += cross_problems(config)
    if found or config is None:
        raise ConfigError(found, source)
    return config


def dump(config: RunConfig) -> str:
    """The config as YAML, every value written out; `load_file` reads it back to an equal config."""
    # ASCII with escapes: written as they are, some line-breaking characters would come back as others.
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=False)


def _read_profile(profile: str) -> dict[str, Any]:
    if profile.endswith((".yaml", ".yml")):
        return read_mapping(Path(profile), "profile")
    if profile not in profile_names():
        fix = f"use one of: {', '.join(profile_names())}, or the path of a YAML file"
        raise ConfigError([Problem("profile", profile, "there is no such profile", fix)])
    return read_mapping(PROFILES / f"{profile}.yaml", "profile")


def _build(plain: dict[str, Any]) -> tuple[RunConfig | None, list[Any]]:
    try:
        return RunConfig.model_validate(plain), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _follows(entry: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a list is called too short only because pydantic does not count its broken items."""
    loc = tuple(entry["loc"])
    inside = any(len(other["loc"]) > len(loc) and tuple(other["loc"][: len(loc)]) == loc for other in entries)
    return entry["type"] == "too_short" and inside


def _remove(plain: dict[str, Any], broken: Collection[Location]) -> dict[str, list[int]]:
    """Take broken fields out of plain, so that the rest can be judged with defaults in their place.

    A list loses the broken items only. Returns, per such list, the original numbers of the items that stay.
    """
    items: dict[Location, set[int]] = {}
    whole = set(broken)
    for loc in broken:
        if any(loc[:depth] in whole for depth in range(1, len(loc))):
            continue
        target: Any = plain
        for depth, part in enumerate(loc):
            if isinstance(target, list) and isinstance(part, int):
                items.setdefault(loc[:depth], set()).add(part)
                break
            if not isinstance(target, dict):
                break
            if depth == len(loc) - 1:
                target.pop(part, None)
            else:
                target = target.get(part)
    numbers = {}
    for loc, gone in items.items():
        target = plain
        for part in loc:
            target = target[part]
        numbers[dotted(loc)] = [index for index in range(len(target)) if index not in gone]
        target[:] = [target[index] for index in numbers[dotted(loc)]]
    plain.setdefault("name", "unnamed")  # the one field without a default
    return numbers


def _renumbered(problem: Problem, numbers: Mapping[str, list[int]]) -> Problem:
    """The problem with the item number that the user knows."""
    for name, originals in numbers.items():
        found = re.match(rf"{re.escape(name)}\.(\d+)(.*)", problem.key)
        if found:
            key = f"{name}.{originals[int(found[1])]}{found[2]}"
            return Problem(key, problem.got, problem.why, problem.fix)
    return problem


def _rests_on(problem: Problem, broken: Iterable[Location]) -> bool:
    """Whether a problem between fields depends on a broken one, whose default only stands in. Such problems name all
    fields that they depend on (tests/config holds them to it)."""
    text = f"{problem.key} {problem.why}"
    names = [re.escape(dotted(loc)) + r"(?!\w)" for loc in broken if loc]
    # What rests on a list as a whole rests on each of its items.
    names += [re.escape(dotted(loc[:-1])) + r"(?![\w.])" for loc in broken if loc and isinstance(loc[-1], int)]
    return any(re.search(rf"(?<![\w.]){name}", text) for name in names)
