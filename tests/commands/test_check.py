"""`holdfast check`: the limits that people are told to look up in it, at night too."""

from __future__ import annotations

import pytest

from holdfast.commands.check import summary
from holdfast.config import load_profile


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        (
            [],
            "first section 120 s, init 600 s, restore 900 s, step 300 s, save 1200 s, between sections 120 s, "
            "background write 600 s, missing nodes 3600 s",
        ),
        (["recovery.in_job=false", "recovery.spares=0"], "background write 600 s"),
    ],
)
def test_the_limits_are_those_that_something_keeps(overrides: list[str], limits: str) -> None:
    assert dict(summary(load_profile("llama3-8b-p5x8", overrides)))["limits"] == limits


def test_a_run_that_saves_nothing_has_no_limit_of_a_write() -> None:
    assert "background write" not in dict(summary(load_profile("cpu-test", ["checkpoint.mode=off"])))["limits"]
