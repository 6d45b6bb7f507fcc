"""Puts a value into the text of a YAML file and leaves everything else, comments too, as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml


def with_value(text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` (plain data) at a path of keys; sections that are missing are added.

    Raises yaml.YAMLError if the text is not YAML, and KeyError if the path leads through something that is no section.
    What an anchor shares is not told apart: whoever calls this compares what the new text means with what it should.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return f"{_entry(path, value)}\n"
    node: yaml.Node = root
    for depth, key in enumerate(path):
        if not isinstance(node, yaml.MappingNode):
            raise KeyError(".".join(path[:depth]))
        name, found = next(((name, child) for name, child in node.value if name.value == key), (None, None))
        if name is None or found is None:
            return _added(text, node, _entry(path[depth:], value))
        if depth == len(path) - 1 or _is_empty(found):
            nested = _flow(path[depth + 1 :], value)
            return _replaced(text, name, found, nested)
        node = found
    raise KeyError("an empty path")


def _is_empty(node: yaml.Node) -> bool:
    """A section that is written without any content, which YAML reads as null."""
    return isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null")


def _flow(path: Sequence[str], value: Any) -> str:
    """The value inside sections of these names. JSON is YAML."""
    text = json.dumps(value, ensure_ascii=False)
    for key in reversed(path):
        text = f"{{{key}: {text}}}"
    return text


def _entry(path: Sequence[str], value: Any) -> str:
    return f"{path[0]}: {_flow(path[1:], value)}"


def _replaced(text: str, name: yaml.Node, node: yaml.Node, new: str) -> str:
    start, end = node.start_mark.index, _end(text, node)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        # A block begins in a line of its own, where a value cannot stand.
        start = text.index(":", name.end_mark.index) + 1
    gap = "" if start == 0 or text[start - 1] in " \n" else " "
    return text[:start] + gap + new + text[end:]


def _added(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    if mapping.flow_style:
        end = mapping.end_mark.index - 1
        before = text[:end].rstrip()
        comma = "" if not mapping.value or before.endswith(",") else ","
        space = "" if before.endswith("{") else " "
        return f"{before}{comma}{space}{entry}{text[end:]}"
    indent = " " * mapping.value[0][0].start_mark.column
    end = _end(text, mapping)
    # What stands behind the last value in its line is a comment about it.
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{indent}{entry}{text[line_end:] or chr(10)}"


def _end(text: str, node: yaml.Node) -> int:
    """Where its text ends: block collections and block scalars are said to end where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(node, yaml.MappingNode) else last)
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip())
