"""Finds a field of RunConfig by its dotted key: its section, its meaning, whether it may be null or is a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from holdfast.config.schema import RunConfig

Location = tuple[str | int, ...]
"""A key in parts: ("faults", 0, "rank") is faults.0.rank."""


def dotted(loc: Sequence[str | int]) -> str:
    """`faults.0.rank`."""
    return ".".join(str(part) for part in loc)


def section_at(loc: Sequence[str | int]) -> type[BaseModel] | None:
    """The section at a location; () is RunConfig itself. None if there is no section."""
    if not loc:
        return RunConfig
    field = field_at(loc[:-1]) if isinstance(loc[-1], int) else field_at(loc)
    return _section(field.annotation) if field else None


def field_at(loc: Sequence[str | int]) -> FieldInfo | None:
    """The field at a location, or None. An index names an item of a list, which has the list's field."""
    if not loc:
        return None
    if isinstance(loc[-1], int):
        return field_at(loc[:-1])
    section = section_at(loc[:-1])
    return section.model_fields.get(loc[-1]) if section else None


def _section(annotation: Any) -> type[BaseModel] | None:
    if is_list(annotation):
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def is_list(annotation: Any) -> bool:
    """Whether a field of this type holds a list."""
    return get_origin(annotation) is tuple


def in_mapping(loc: Sequence[str | int]) -> bool:
    """Whether a location is a mapping of free keys, or inside one: the config does not know what belongs there."""
    fields = (field_at(loc[:depth]) for depth in range(1, len(loc) + 1))
    return any(get_origin(one) is dict for field in fields if field for one in get_args(field.annotation))


def may_be_null(annotation: Any) -> bool:
    """Whether a field of this type may be null."""
    return NoneType in get_args(annotation)


def meaning(loc: Sequence[str | int]) -> str:
    """First paragraph of the nearest field's description; empty if there is none."""
    for end in range(len(loc), 0, -1):
        field = field_at(loc[:end])
        if field:
            return " ".join((field.description or "").split("\n\n")[0].split())
    return ""


def all_fields(section: type[BaseModel] = RunConfig, prefix: Location = ()) -> Iterator[tuple[Location, FieldInfo]]:
    """Every field of every section with its location; list items and sections themselves are left out."""
    for name, field in section.model_fields.items():
        inner = None if is_list(field.annotation) else _section(field.annotation)
        if inner:
            yield from all_fields(inner, (*prefix, name))
        else:
            yield (*prefix, name), field
