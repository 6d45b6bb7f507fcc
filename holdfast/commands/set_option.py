"""`--set KEY=VALUE`, the same for every command that takes a config."""

from __future__ import annotations

from typing import Any


def add_set(parser: Any, what: str) -> None:
    """Declare it; the values are `arguments.overrides`, a list of text. what: the help's words for what it does."""
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=f"{what}; may be repeated"
    )
