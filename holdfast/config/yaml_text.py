"""YAML as people mean it: `off` is text, and a key that stands twice is a mistake.

YAML 1.1, PyYAML's dialect, reads `mode: off` as false, and of two equal keys silently takes the last.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from holdfast.config.problems import ConfigError, Problem


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's booleans and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse(text: str) -> Any:
    """The value that the text stands for. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
    # PyYAML lets through what fails when it makes a value: of 2026-99-01, and of `!!int ""` and the like.
    except ValueError as error:
        raise yaml.YAMLError(f"a value in it cannot be read: {error}") from None
    except (LookupError, AttributeError, TypeError):
        raise yaml.YAMLError("a value in it does not fit its tag") from None


def read_mapping(path: Path, key: str) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError that names `key` (the option that named the file) and the path."""
    try:
        loaded = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError([Problem(key, str(path), why, "give the path of a readable file")]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = f"it is not YAML ({' '.join(str(error).split())})"
        raise ConfigError([Problem(key, str(path), why, "correct the file")]) from None
    if not isinstance(loaded, dict):
        raise ConfigError([Problem(key, str(path), "it is not a mapping of keys", "write `key: value` lines")])
    return loaded
