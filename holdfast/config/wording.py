"""Turns pydantic's findings into problems that say what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from holdfast.config.fields import Location, dotted, meaning, section_at
from holdfast.config.problems import Problem

_WRONG_TYPE = {
    "int": "it should be a whole number",
    "float": "it should be a number",
    "bool": "it should be true or false",
    "string": "it should be text (in quotes, if YAML takes it for something else)",
    "dict": "it should be a mapping, like {a: 1}",
    "tuple": "it should be a list, like [a, b]",
    "model": "it should be a section, with keys of its own",
    "finite": "it should be a finite number",
}
_LIMITS = {
    "greater_than_equal": ("ge", "it should be at least {}"),
    "greater_than": ("gt", "it should be more than {}"),
    "less_than_equal": ("le", "it should be at most {}"),
    "less_than": ("lt", "it should be less than {}"),
    "too_short": ("min_length", "it should have at least {} items"),
    "too_long": ("max_length", "it should have at most {} items"),
    "string_too_long": ("max_length", "it should have at most {} characters"),
    "string_pattern_mismatch": ("pattern", "it should match the pattern {}"),
    "literal_error": ("expected", "it should be {}"),
}


def problem_from(entry: Mapping[str, Any]) -> Problem:
    """The problem that one entry of pydantic's ValidationError.errors() describes."""
    loc: Location = tuple(entry["loc"])
    key, kind, got = dotted(loc) or "(top level)", entry["type"], entry["input"]
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown(loc, got)
    if kind == "missing":
        return Problem(key, None, "it is required", f"add it; it means: {meaning(loc)}")
    return Problem(key, got, _why(entry), f"it means: {meaning(loc)}")


def _unknown(loc: Location, got: Any) -> Problem:
    section = section_at(loc[:-1])
    legal = sorted(section.model_fields) if section else []
    near = get_close_matches(str(loc[-1]), legal, n=1)
    fix = f"did you mean {dotted((*loc[:-1], near[0]))}?" if near else f"use one of: {', '.join(legal)}"
    return Problem(dotted(loc), got, "there is no such key", fix)


def _why(entry: Mapping[str, Any]) -> str:
    kind: str = entry["type"]
    context = entry.get("ctx", {})
    if kind in _LIMITS:
        name, text = _LIMITS[kind]
        return text.format(context[name])
    if kind == "value_error":
        return str(entry["msg"]).removeprefix("Value error, ")
    by_type = _WRONG_TYPE.get(kind.partition("_")[0])
    return by_type or str(entry["msg"])[:1].lower() + str(entry["msg"])[1:]
