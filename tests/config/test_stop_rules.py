"""Stop rules and watching limits that do not fit together are refused, with both keys and the way out."""

from __future__ import annotations

import pytest

from holdfast.config import ConfigError, load_profile


@pytest.mark.parametrize(
    ("sets", "key", "other"),
    [
        (["recovery.max_restarts_without_progress=2"], "recovery.max_restarts_without_progress", "same_step_limit=3"),
        (["recovery.on_bad_loss=roll_back", "checkpoint.mode=off"], "recovery.on_bad_loss", "checkpoint.mode=off"),
        (
            ["recovery.on_bad_loss=roll_back", "checkpoint.local.interval_steps=5"],
            "recovery.on_bad_loss",
            "a restart prefers a newer one of the local tier",
        ),
        (
            ["recovery.in_process=true", "recovery.step_timeout_floor_s=14"],
            "recovery.step_timeout_floor_s",
            "in_process_hard_timeout_s=14",
        ),
    ],
)
def test_an_inversion_is_refused(sets: list[str], key: str, other: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_profile("cpu-test", sets)
    assert key in str(error.value) and other in str(error.value)


def test_what_does_not_depend_on_the_other_is_allowed() -> None:
    load_profile("cpu-test", ["recovery.max_restarts_without_progress=3"])
    load_profile("cpu-test", ["recovery.on_bad_loss=roll_back"])
    load_profile("cpu-test", ["recovery.in_process=true", "recovery.step_timeout_floor_s=15"])
    load_profile("cpu-test", ["recovery.step_timeout_floor_s=14"])
    load_profile(
        "cpu-test",
        ["recovery.in_process=true", "recovery.step_timeout_floor_s=1", "recovery.learn_step_timeout=false"],
    )


@pytest.mark.parametrize("value", ["nan", "1", "0"])
def test_a_spike_factor_that_every_loss_or_none_would_pass_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="loss_spike_factor"):
        load_profile("cpu-test", [f"recovery.loss_spike_factor={value}"])


def test_an_id_that_is_none_cannot_clear_a_terminal_record() -> None:
    with pytest.raises(ConfigError, match="clear_terminal"):
        load_profile("cpu-test", ["resume.clear_terminal=yes"])
