"""Values that one field must refuse, derived from the JSON schema: for every limit that it states, one beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.config import RunConfig

SCHEMA = RunConfig.model_json_schema()
A_FAULT = {"kind": "exception", "rank": 0, "step": 1}
ITEMS: dict[str, dict[str, Any]] = {
    "faults": A_FAULT,
    "data.mixture": {"path": "a", "weight": 1.0},
    "data.prepare": {"source": "a", "to": "b"},
}
"""Lists of sections, and a valid item of each."""


class Broken(NamedTuple):
    """One value that a key must refuse, and which limit it breaks."""

    key: str
    limit: str
    value: Any


def every_broken_value() -> list[Broken]:
    """At least one for each limit of each field, items of lists included."""
    return list(_walk(SCHEMA, ()))


def put(raw: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Set a dotted key in plain data, in place."""
    *parents, leaf = key.split(".")
    target: Any = raw
    for name, item in ITEMS.items():
        if key.startswith(f"{name}."):
            *above, last = name.split(".")
            section = raw.setdefault(above[0], {}) if above else raw
            section[last] = section.get(last) or [dict(item)]
    for parent in parents:
        target = target[int(parent)] if isinstance(target, list) else target.setdefault(parent, {})
    target[leaf] = value
    return raw


def _walk(section: dict[str, Any], prefix: tuple[str, ...]) -> Iterator[Broken]:
    required = section.get("required", [])
    for name, field in section["properties"].items():
        key = ".".join((*prefix, name))
        inner = _resolve(field)
        items = _resolve(inner.get("items", {}))
        if "properties" in inner:
            yield Broken(key, "type", "maybe")
            yield from _walk(inner, (*prefix, name))
            continue
        if "properties" in items:
            yield from _walk(items, (*prefix, name, "0"))
        nullable = any(option.get("type") == "null" for option in field.get("anyOf", []))
        if not nullable:
            yield Broken(key, "not null", None)
        for limit, value in _beyond(next((o for o in field.get("anyOf", []) if o.get("type") != "null"), inner)):
            yield Broken(key, limit, value)
        assert name in required or "default" in field, key
    yield Broken(".".join((*prefix, "no_such_key")), "unknown", 1)


def _default_items(field: dict[str, Any]) -> list[Any]:
    default = field.get("default")
    return default if isinstance(default, list) else []


def _resolve(field: dict[str, Any]) -> dict[str, Any]:
    reference = field.get("$ref")
    return SCHEMA["$defs"][reference.rpartition("/")[2]] if reference else field


def _beyond(field: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    limits: dict[str, Callable[[Any], Any]] = {
        "minimum": lambda limit: limit - 1,
        "exclusiveMinimum": lambda limit: limit,
        "maximum": lambda limit: limit + 1,
        "exclusiveMaximum": lambda limit: limit,
        "maxLength": lambda limit: "a" * (limit + 1),
        "pattern": lambda _: "Not a legal name!",
        "enum": lambda _: "no-such-choice",
        "minItems": lambda limit: field["default"][: limit - 1],
        "maxItems": lambda limit: (field["default"] * (limit + 1))[: limit + 1],
    }
    for name, beyond in limits.items():
        if name in field:
            yield name, beyond(field[name])
    of_type: dict[str, list[Any]] = {
        "integer": ["maybe", "4.5", 4.5, True, [1]],
        "number": ["maybe", True, float("nan"), float("inf"), "nan", {}],
        "boolean": ["maybe", 2, "4.5"],
        "string": [5, True, ["x"]],
        "object": ["maybe", 5, [1]],
        "array": ["maybe", 5, [5, *_default_items(field)[1:]]],
    }
    for value in of_type.get(field.get("type", ""), []):
        if "enum" not in field:
            yield f"type, {value!r}", value
