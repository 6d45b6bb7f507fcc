"""`--set a.b=value`: puts values from a command line, which are all text, into a profile's plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from holdfast.config import yaml_text
from holdfast.config.fields import Location, dotted, field_at, in_mapping, is_list, may_be_null, section_at
from holdfast.config.problems import Problem

_NULL = ("null", "none", "None", "~")


def apply(raw: dict[str, Any], overrides: Iterable[str]) -> list[Problem]:
    """Change raw by `a.b=value` strings.

    Plain values stay text, which pydantic parses by the type of the field: "4" is 4 for a number, "false" is false for
    a switch. Lists and sections are written as YAML: `data.path=[a.txt, b.txt]`.
    """
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            fix = "write it like --set checkpoint.interval_steps=50"
            problems.append(Problem("--set", override, "it is not key=value", fix))
            continue
        loc: Location = tuple(int(part) if part.isdecimal() else part for part in key.strip().split("."))
        problem = _put(raw, loc, _value(loc, text))
        if problem:
            problems.append(problem)
    return problems


def _put(raw: dict[str, Any], loc: Location, value: Any) -> Problem | None:
    target: Any = raw
    part: Any
    for depth, part in enumerate(loc):
        above = dotted(loc[:depth])
        if isinstance(target, list):
            if not isinstance(part, int) or part >= len(target):
                return Problem(
                    dotted(loc), value, f"{above} has {len(target)} items, numbered from 0", "name one of them"
                )
        elif not isinstance(target, dict):
            return Problem(dotted(loc), value, f"{above} is not a section", "check the dotted key")
        if depth == len(loc) - 1:
            # A section given as a mapping changes the keys that it names.
            merged = isinstance(value, dict) and isinstance(target, dict) and isinstance(target.get(part), dict)
            target[part] = {**target[part], **value} if merged else value
        elif isinstance(target, list):
            target = target[part]
        else:
            field = field_at(loc[: depth + 1])
            target = target.setdefault(part, [] if field and is_list(field.annotation) else {})
    return None


def _value(loc: Location, text: str) -> Any:
    field = field_at(loc)
    annotation = field.annotation if field else None
    if annotation is not None and may_be_null(annotation) and text in _NULL:
        return None
    indexed = isinstance(loc[-1], int)
    structured = (is_list(annotation) and not indexed) or section_at(loc) is not None or in_mapping(loc)
    if not structured:
        return text
    try:
        return yaml_text.parse(text)
    except yaml.YAMLError:
        return text
