"""What every section of the config is made of: strict numbers, and an immutable model that refuses unknown keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field


def _no_booleans(value: Any) -> Any:
    """YAML `true` must not count as the number 1."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a boolean")
    return value


def _number_from_text(value: Any) -> Any:
    """A Literal of numbers takes numbers only; a command line gives text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _no_numbers(value: Any) -> Any:
    """A number would count as seconds since 1970."""
    if isinstance(value, (bool, int, float)) or (isinstance(value, str) and value.strip().lstrip("+-").isdecimal()):
        raise ValueError("a date and time is wanted, not a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_booleans)]
Real = Annotated[float, BeforeValidator(_no_booleans), Field(allow_inf_nan=False)]
Seconds = Annotated[Real, Field(gt=0)]
Moment = Annotated[AwareDatetime, BeforeValidator(_no_numbers)]
"""Date, time and time zone, like 2026-12-24T11:30:00Z."""


NumberFromText = BeforeValidator(_number_from_text)
"""For a Literal of numbers."""


class Section(BaseModel):
    """Base of every section: immutable, no unknown keys, attribute docstrings become schema descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())
